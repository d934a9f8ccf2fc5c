"""A long-lived process of a session: a shell or an interpreter that the owner talks to.

It gets two pipes besides its output (4: a word of the owner that a script is there, 5: its answers)
and the script itself as 6, a file in memory that the owner rewrites before each word. A script of
any length blocks nobody. The word goes by the sandbox's first process, which notes the moment: what
was born since is what an interrupt kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from quintain.errors import SandboxError
from quintain.sandbox import wire
from quintain.sandbox.command import Capture, Ended, Report, ended
from quintain.task import SandboxSpec

if TYPE_CHECKING:
    from quintain.sandbox.running import NativeSandbox

START_S = 10.0
PATIENCE_S = 1.0
"""How long a process that answered no more may take to end by itself."""
READ_BYTES = 1 << 16
KILLED = Ended(9)


class Stream(Protocol):
    """One output of the process."""

    def take(self) -> tuple[bytes, bool]:
        """What came since the last time, and whether it was cut."""
        ...


class Attached(ABC):
    """One running process; `start` makes it.

    Args:
        max_answer_bytes: an answer that grows beyond is taken for the end of the process.
    """

    out: Stream
    err: Stream
    slowness = 1.0
    """By which its waits are longer than on bare hardware."""

    def __init__(self, max_answer_bytes: int) -> None:
        self._most = max_answer_bytes
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._over = False
        self.pid = 0
        """Inside; set by whoever reads its first answer."""

    def _answered(self, data: bytes) -> None:
        """Takes what it answered; nothing: it answers no more."""
        self._buffer += data
        self._over |= not data or len(self._buffer) > self._most
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

    @property
    @abstractmethod
    def current(self) -> bool:
        """Whether it belongs to the sandbox as it is now (a restored one has new processes)."""

    @abstractmethod
    async def start(self, argv: Sequence[str]) -> None:
        """Starts it."""

    @abstractmethod
    async def ask(self, script: bytes, word: bytes) -> None:
        """Puts the script there and says so; answers to nothing are forgotten."""

    @abstractmethod
    async def interrupt(self, signal: int) -> None:
        """Signals it, and kills what was born below it since it was last asked."""

    @abstractmethod
    async def settle(self) -> None:
        """Waits until an interrupt is done with.

        What is young is killed in rounds; without the wait the next command's processes would be
        taken for the last one's.
        """

    async def clear(self) -> None:
        """Kills what it began before it heard of an interrupt; called once it has answered.

        An interrupt looks at what runs, and the process may fork between that look and its signal.
        """
        await self.interrupt(0)
        await self.settle()

    @abstractmethod
    async def ended(self) -> Ended:
        """How it ended, once its whole tree is gone; it is killed if need be.

        Raises:
            SandboxError: the sandbox is broken, or it cannot be killed.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kills it with everything below it, and waits for that; its output can still be taken."""

    @abstractmethod
    def close(self) -> None:
        """Hangs up, which kills the process and everything below it.

        Whoever waits for an answer gets none. The sandbox does it, too, when it closes.
        """


class Attaching(Protocol):
    """A sandbox, as a session sees it."""

    spec: SandboxSpec

    def attach(self, max_answer_bytes: int) -> Attached:
        """A process for a session, to be started."""
        ...

    def check(self) -> None:
        """Raises SandboxError if the sandbox is broken."""
        ...

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file; see `quintain.protocols.Sandbox.write`."""
        ...

    async def discard(self, path: str) -> None:
        """Removes a file, if it is there and may be removed."""
        ...


class NativeAttached(Attached):
    """A process of a native sandbox.

    Args:
        sandbox: where it runs.
        max_answer_bytes: an answer that grows beyond is taken for the end of the process.
    """

    out: Capture
    err: Capture

    def __init__(self, sandbox: NativeSandbox, max_answer_bytes: int) -> None:
        super().__init__(max_answer_bytes)
        self._loop = asyncio.get_running_loop()
        self._link = sandbox.link
        self._answers, self._input, self._script, self._reader = -1, -1, -1, -1
        self._number = 0
        self._sandbox = sandbox
        limit = sandbox.spec.max_output_bytes
        self.out, self.err = Capture(self._loop, limit), Capture(self._loop, limit)
        self._report = Report(self._loop)

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
        os.set_blocking(self._input, False)
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
        self._answered(data)
        if self._over:
            self._loop.remove_reader(self._answers)

    async def ask(self, script: bytes, word: bytes) -> None:
        """Puts the script there and says so; answers to nothing are forgotten."""
        self._buffer.clear()
        # Where a sandbox answers `open` by a duplicate, the next reader goes on after the last.
        os.lseek(self._reader, 0, os.SEEK_SET)
        os.ftruncate(self._script, 0)
        view = memoryview(script)
        while view:
            view = view[os.pwrite(self._script, view, len(script) - len(view)) :]
        self._link.tell(wire.ASK, self._number, word, (self._input,))

    async def interrupt(self, signal: int) -> None:
        """Signals it, and kills what was born below it since it was last asked."""
        self._link.tell(wire.KILL, self._number, wire.KILL_BODY.pack(self.pid, signal))

    async def settle(self) -> None:
        """Waits until the supervisor has done with an interrupt."""
        os.close(await self._sandbox.open_file("/", wire.FOLDER))

    async def ended(self) -> Ended:
        """How it ended, as its minder says, once its whole tree is gone."""
        for wait_s in (PATIENCE_S, START_S):
            try:
                async with asyncio.timeout(wait_s):
                    # Shielded: a cancelled wait must leave the record to the next.
                    record = await asyncio.shield(self._report.record)
            except TimeoutError:
                self._link.tell(wire.KILL, self._number)
                continue
            if len(record) == wire.STATUS.size:
                return ended(record)
            self._link.check()
            return KILLED
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
        """Hangs up: the minder kills the process and everything below it."""
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
