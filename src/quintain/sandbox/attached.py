"""A long-lived process of a session: a shell or an interpreter that the owner talks to.

It gets two pipes besides its output (4: a word of the owner that a script is there, 5: its answers)
and the script itself as 6, a file in memory that the owner rewrites before each word. Nothing has
to be asked of the supervisor for a command, and a script of any length blocks nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quintain.errors import SandboxError
from quintain.sandbox import wire
from quintain.sandbox.command import Capture, Report

if TYPE_CHECKING:
    from quintain.sandbox.running import NativeSandbox

START_S = 10.0
PATIENCE_S = 1.0
"""How long a process that answered no more may take to end by itself."""
SLACK_MS = 20
"""How much before it was asked for a command counts as begun: its word takes its way, and the
kernel tells starts in ticks of 10 ms."""
READ_BYTES = 1 << 16


class Attached:
    """One running process; `start` makes it.

    Args:
        sandbox: where it runs.
        max_answer_bytes: an answer that grows beyond is taken for the end of the process.
    """

    def __init__(self, sandbox: NativeSandbox, max_answer_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = sandbox.link
        self._most = max_answer_bytes
        self._answers, self._input, self._script, self._reader = -1, -1, -1, -1
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._over = False
        self._number = 0
        self._sandbox = sandbox
        limit = sandbox.spec.max_output_bytes
        self.out, self.err = Capture(self._loop, limit), Capture(self._loop, limit)
        self._report = Report(self._loop)
        self.pid = 0
        """Inside; set by whoever reads its first answer."""

    @property
    def current(self) -> bool:
        """Whether it belongs to the sandbox as it is now (a restored one has new processes)."""
        return self._link is self._sandbox.link

    async def start(self, argv: Sequence[str]) -> None:
        """Starts it."""
        await self._sandbox.thawed()
        theirs, self._input = os.pipe2(os.O_CLOEXEC)
        self._answers, told = os.pipe2(os.O_CLOEXEC)
        self._script = os.memfd_create("script", os.MFD_CLOEXEC)
        os.fchmod(self._script, 0o444)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        readable = os.open(f"/proc/self/fd/{self._script}", os.O_RDONLY | os.O_CLOEXEC)
        self._reader = os.dup(readable)
        os.set_blocking(self._answers, False)
        self._loop.add_reader(self._answers, self._readable)
        fds = (null, self.out.write_end, self.err.write_end, self._report.write_end,
               theirs, told, readable)  # fmt: skip
        self._sandbox.attached.add(self)
        try:
            self._number = self._sandbox.start_command(argv, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _readable(self) -> None:
        try:
            data = os.read(self._answers, READ_BYTES)
        except BlockingIOError:
            return
        self._buffer += data
        if not data or len(self._buffer) > self._most:
            self._loop.remove_reader(self._answers)
            self._over = True
        self._more.set()

    async def answer(self, length: Callable[[bytearray], int]) -> bytes:
        """The next answer; empty when the process is gone.

        Args:
            length: of the answer at the front of the bytes so far; 0 where it is not whole.
        """
        while True:
            size = length(self._buffer)
            if size:
                found = bytes(self._buffer[:size])
                del self._buffer[:size]
                return found
            if self._over:
                return b""
            self._more.clear()
            await self._more.wait()

    def ask(self, script: bytes, word: bytes) -> None:
        """Puts the script there and says so; answers to nothing are forgotten."""
        self._buffer.clear()
        # Where a sandbox answers `open` by a duplicate, the next reader goes on after the last.
        os.lseek(self._reader, 0, os.SEEK_SET)
        os.ftruncate(self._script, 0)
        view = memoryview(script)
        while view:
            view = view[os.pwrite(self._script, view, len(script) - len(view)) :]
        with contextlib.suppress(BrokenPipeError):
            os.write(self._input, word)

    def interrupt(self, signal: int, began: float) -> None:
        """Signals it, and kills what was started below it since a moment (`time.monotonic()`)."""
        age_ms = int(1000 * (time.monotonic() - began)) + SLACK_MS
        body = wire.KILL_BODY.pack(self.pid, signal, age_ms)
        self._link.tell(wire.KILL, self._number, body)

    async def settle(self) -> None:
        """Waits until the supervisor has done with an interrupt.

        It kills what is young in rounds; without the wait it would take the next command's
        processes for the last one's.
        """
        os.close(await self._sandbox.open_file("/", wire.FOLDER))

    async def ended(self) -> bytes:
        """The minder's record (`wire.STATUS`) once its whole tree is gone; it is killed if need be.

        Raises:
            SandboxError: the sandbox is broken, or it cannot be killed.
        """
        for wait_s in (PATIENCE_S, START_S):
            try:
                async with asyncio.timeout(wait_s):
                    # Shielded: a cancelled wait must leave the record to the next.
                    record = await asyncio.shield(self._report.record)
            except TimeoutError:
                self._link.tell(wire.KILL, self._number)
                continue
            if len(record) == wire.STATUS.size:
                return record
            self._link.check()
            return wire.STATUS.pack(9, 0, 0, 0, 0, 0, 0, 0)
        raise SandboxError(f"a session did not end within {START_S:g} s")

    async def kill(self) -> None:
        """Kills it with everything below it, and waits for that; its output can still be taken."""
        self._link.tell(wire.KILL, self._number)
        with contextlib.suppress(SandboxError):
            await self.ended()
            # Its minder is dead; what that left is killed next, while nothing else can fork.
            await self.settle()
            await self.settle()

    def close(self) -> None:
        """Hangs up: the minder kills the process and everything below it.

        Whoever waits for an answer gets none. The sandbox does it, too, when it closes.
        """
        self._sandbox.attached.discard(self)
        for fd in (self._answers, self._input, self._script, self._reader):
            if fd >= 0:
                if fd == self._answers and not self._over:
                    self._loop.remove_reader(fd)
                os.close(fd)
        self._answers = self._input = self._script = self._reader = -1
        self._over = True
        self._more.set()
        self._report.close()
        if not self._report.record.done():
            self._report.record.set_result(b"")
        self.out.close()
        self.err.close()
