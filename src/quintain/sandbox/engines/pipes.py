"""The stream to an agent over the pipes of a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

SAID_BYTES = 4000


class PipeLink:
    """A child's stdin and stdout; its stderr is kept for messages."""

    def __init__(self, process: asyncio.subprocess.Process, log: int) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, argv: Sequence[str]) -> PipeLink:
        """Starts a program in a session of its own: Ctrl-C does not reach it.

        Raises:
            OSError: it cannot be started.
        """
        log = os.memfd_create("said", os.MFD_CLOEXEC)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(log)
            raise
        return cls(process, log)

    async def read(self) -> bytes:
        """The next bytes of stdout; empty at the end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(1 << 20)

    def write(self, data: bytes) -> None:
        """Sends bytes to stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def drain(self) -> None:
        """Waits until few unsent bytes are left."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()

    def said(self) -> str:
        """What came on stderr."""
        if self._log < 0:
            return ""
        return os.pread(self._log, SAID_BYTES, 0).decode("utf-8", "replace")

    async def hang_up(self) -> None:
        """Ends its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def ended(self, timeout_s: float) -> int:
        """Its exit code.

        Raises:
            TimeoutError: it goes on.
        """
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    async def close(self) -> None:
        """Hangs up, and frees what is held."""
        await self.hang_up()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
