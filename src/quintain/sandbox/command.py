"""One command in a sandbox, seen from the owner: its pipes, its output, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from dataclasses import dataclass
from typing import Literal

from quintain.sandbox import wire

CHUNK = 1 << 16
DRAIN_BYTES = 4 << 20
MARK = b"\n... %d bytes cut ...\n"


def cut(total: int, limit: int) -> tuple[int, bytes, int]:
    """How much of a long output's head and tail to keep, and the mark to put between them.

    Args:
        total: bytes that there are, more than the limit.
        limit: bytes to keep, the mark among them.
    """
    head = limit // 2
    room = limit - head
    mark = MARK % total
    # The mark names what is cut, which its own length changes: two rounds settle it.
    for _ in range(2):
        mark = MARK % (total - head - max(0, room - len(mark)))
    # A limit of a few bytes has no room for a mark.
    return (head, mark, room - len(mark)) if len(mark) < room else (head, b"", room)


Killed = Literal["", "timeout", "memory", "pids"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, as whoever waited for it reports; every backend reads it alike."""

    status: int
    """As waitpid gives it."""
    error: int = 0
    """The errno with which it could not be started; 0: it was."""
    at: Literal["", "fork", "folder", "program"] = ""
    """Which step of starting it failed."""
    timed_out: bool = False
    too_many: bool = False
    """Whether it was ended for its number of processes."""
    ooms: int = 0
    """Processes that ended for want of memory while it ran."""
    refused: int = 0
    """Forks that were refused meanwhile."""

    def read(self, program: str, folder: str) -> tuple[int, Killed, bytes]:
        """Its exit code, the limit that ended it, and words for stderr where it did not start.

        126 and 127 are the shell's codes for a program that cannot be run or is not there.
        """
        if self.error:
            missing = self.error == errno.ENOENT and self.at == "program"
            what = f"the folder {folder!r}" if self.at == "folder" else repr(program)
            words = f"cannot run {what}: {os.strerror(self.error)}\n".encode()
            forked = self.at == "fork" or self.error == errno.EAGAIN
            return (127 if missing else 126), ("pids" if forked else ""), words
        code = os.waitstatus_to_exitcode(self.status)
        if self.timed_out:
            return code, "timeout", b""
        if self.too_many:
            return code, "pids", b""
        if code and self.ooms:
            return code, "memory", b""
        return code, ("pids" if code and self.refused else ""), b""


_PLACES: dict[int, Literal["fork", "folder", "program"]] = {
    wire.AT_FORK: "fork",
    wire.AT_CHDIR: "folder",
    wire.AT_EXEC: "program",
}


def ended(record: bytes) -> Ended:
    """What a minder's record (`wire.STATUS`) says."""
    status, error, where, flags, _, _, ooms, refused = wire.STATUS.unpack(record)
    return Ended(
        status=status,
        error=error,
        at=_PLACES.get(where, ""),
        timed_out=bool(flags & wire.TIMED_OUT),
        ooms=ooms,
        refused=refused,
    )


class Kept:
    """The head and the tail of an output, at most `limit` bytes in all; the middle is counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0
        self._whole = True
        """Whether everything so far came."""

    def add(self, data: bytes) -> None:
        """What came next."""
        self._total += len(data)
        room = self._limit // 2 - len(self._head)
        if room > 0 and self._whole:
            self._head += data[:room]
            data = data[room:]
        most = self._limit - self._limit // 2
        self._tail += data[-most:]
        # Dropping a little at every read would move the rest each time.
        if len(self._tail) > 2 * most or (self.truncated and len(self._tail) > most + CHUNK):
            del self._tail[: len(self._tail) - most]

    def skip(self, count: int) -> None:
        """So many bytes did not come."""
        if count:
            self._total += count
            self._whole = False
            self._tail.clear()

    @property
    def truncated(self) -> bool:
        """Whether there was more than is kept."""
        return self._total > self._limit or not self._whole

    @property
    def data(self) -> bytes:
        """What is kept: everything, or head, mark and tail."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        head, mark, tail = cut(max(self._total, self._limit + 1), self._limit)
        if len(self._head) < head or len(self._tail) < tail:
            head, tail = min(head, len(self._head)), min(tail, len(self._tail))
            mark = MARK % (self._total - head - tail) if mark else b""
        return bytes(self._head[:head] + mark + self._tail[len(self._tail) - tail :])

    def take(self) -> tuple[bytes, bool]:
        """What came since the last time, and whether it was cut."""
        found = self.data, self.truncated
        self.__init__(self._limit)  # type: ignore[misc]
        return found


class Capture:
    """Reads a pipe to its end; of a long output the middle is dropped (`Kept`).

    It is read all the same, so that a flood neither blocks its writer nor fills the owner's memory.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._kept = Kept(limit)
        self._fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self._open = True
        loop.add_reader(self._fd, self._readable)

    @property
    def truncated(self) -> bool:
        """Whether there was more than is kept."""
        return self._kept.truncated

    @property
    def data(self) -> bytes:
        """What is kept: everything, or head, mark and tail."""
        return self._kept.data

    def _take(self) -> int:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return -1
        self._kept.add(data)
        return len(data)

    def _readable(self) -> None:
        if self._take() == 0:
            self.close()

    def drain(self) -> None:
        """Takes what is in the pipe."""
        left = DRAIN_BYTES
        while self._open and left > 0:
            taken = self._take()
            if taken <= 0:
                break
            left -= taken

    def take(self) -> tuple[bytes, bool]:
        """What came since the last time, and whether it was cut; the pipe stays open."""
        self.drain()
        return self._kept.take()

    def finish(self) -> None:
        """Takes what is still in the pipe (nobody writes any more) and closes it."""
        self.drain()
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
