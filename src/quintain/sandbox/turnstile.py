"""Many pass together, or one alone: writers of files, and the snapshot that must not see half."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Turnstile:
    """A lock that many may share and one may hold alone; who wants it alone goes first."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self._sharing = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def passed(self) -> None:
        """Waits until nobody holds it alone."""
        if self._alone.locked():
            async with self._alone:
                return

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Held beside others."""
        await self.passed()
        self._sharing += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._sharing -= 1
            if not self._sharing:
                self._empty.set()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Held alone."""
        async with self._alone:
            await self._empty.wait()
            yield
