"""The images of microVMs: the same as of native sandboxes, and built by native ones.

A build runs in a native sandbox, not in a guest: what is built on is trusted as far as that wall.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os

from quintain.sandbox.images.image import GROUP, PASSWD, Image
from quintain.sandbox.images.library import Library
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


class Bases:
    """Finds and builds images for one backend."""

    def __init__(self, builder: NativeBackend) -> None:
        self._builder = builder
        self._library = Library(rootless=os.geteuid() != 0)
        self._turn = asyncio.Lock()

    async def of(self, spec: SandboxSpec) -> Image:
        """The image of a spec, built now if it must be.

        Raises:
            ConfigError: there is no such image, or the recipe is wrong.
            SandboxError: it cannot be built.
        """
        if spec.needs_build:
            found = await self._builder.prepare(spec)
            assert found is not None
            return found
        async with self._turn:
            found = await asyncio.to_thread(self._library.base, spec.image)
        if spec.image is None:
            # The users that packages expect are for builds; a bare sandbox has those it needs.
            return dataclasses.replace(found, passwd=PASSWD, group=GROUP)
        return found

    async def close(self) -> None:
        """Gives back everything in use."""
        await self._builder.close()
        self._library.close()
