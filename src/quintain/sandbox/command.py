"""One command in a sandbox, seen from the owner: its pipes, its output, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os

from quintain.sandbox import wire

CHUNK = 1 << 16
DRAIN_BYTES = 4 << 20


class Capture:
    """Reads a pipe to its end, keeps at most `limit` bytes, drops the rest and remembers that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self.data = bytearray()
        self.truncated = False
        self._open = True
        loop.add_reader(self._fd, self._readable)

    def _take(self) -> int:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return -1
        room = self._limit - len(self.data)
        if len(data) > room:
            self.truncated = True
            data, taken = data[:room], len(data)
        else:
            taken = len(data)
        self.data += data
        return taken

    def _readable(self) -> None:
        if self._take() == 0:
            self.close()

    def finish(self) -> None:
        """Takes what is still in the pipe (nobody writes any more) and closes it."""
        left = DRAIN_BYTES
        while self._open and left > 0:
            taken = self._take()
            if taken <= 0:
                break
            left -= taken
        self.close()

    def close(self) -> None:
        """Stops reading."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)


class Feed:
    """Writes all of a command's input to a pipe, as it is taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        self._loop = loop
        self._left = memoryview(data)
        if not data:
            self.read_end, self._fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1
            return
        self.read_end, self._fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self._writable()
        if self._fd >= 0:
            loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._fd, self._left) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self.close()

    def close(self) -> None:
        """Ends the input."""
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1


class Report:
    """The minder's word on how a command ended: a record, or nothing when the minder died."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self.record: asyncio.Future[bytes] = loop.create_future()
        loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, wire.STATUS.size)
            self._loop.remove_reader(self._fd)
            if not self.record.done():
                self.record.set_result(data)

    def close(self) -> None:
        """Hangs up; a minder that still works then kills its command."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
