"""A persistent shell in a native sandbox: the working folder, variables, functions and jobs stay.

The shell runs as one long command of the sandbox. For each command the owner writes a script file
and a line on the shell's input; the shell sources the script with files of its own as output, and
answers with the exit code on a pipe that no child inherits. Output in files means that background
jobs never block nor die of a closed pipe, and that the owner reads only what it keeps.

At a timeout the supervisor signals the shell (whose trap returns from the script) and kills what
was started since the command began, so earlier background jobs stay. A shell that does not answer
even then, or that exited, is ended with its whole tree; the next command gets a new one.

The exit code is the shell's own word. A judge that must not be lied to uses `exec`, whose status
comes from waitpid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Literal

from quintain.errors import SandboxError
from quintain.protocols import ExecResult
from quintain.sandbox import wire
from quintain.sandbox.command import Report

if TYPE_CHECKING:
    from quintain.sandbox.running import NativeSandbox

LOOP = """
exec 8<&0 9>&1 </dev/null >/dev/null 2>&1
trap 'return 124' USR1
echo $$ >&9
while IFS=' ' read -r REPLY __in <&8; do
  . FOLDER/script <"$__in" >"FOLDER/$REPLY.out" 2>"FOLDER/$REPLY.err" 8<&- 9>&-
  printf '%s\\n' "$?" >&9
done
"""
SHELL = ("if command -v bash >/dev/null; then exec bash --noprofile --norc -c \"$0\"; fi; "
         "exec sh -c \"$0\"")  # fmt: skip
START_S = 10.0
INTERRUPT_S = 1.0
"""How long an interrupted shell may take to answer before it is replaced."""
SLACK_MS = 20
MARK = b"\n... %d bytes cut ...\n"


class _Shell:
    """One running shell."""

    def __init__(self, sandbox: NativeSandbox) -> None:
        self._sandbox = sandbox
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.pid = 0
        self.number = 0

    async def start(self, folder: str) -> None:
        """Starts it; its first line is its PID inside."""
        theirs, self._input = os.pipe2(os.O_CLOEXEC)
        self._answers, told = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        os.set_blocking(self._answers, False)
        self._report = Report(self._loop)
        self._loop.add_reader(self._answers, self._readable)
        argv = ["sh", "-c", SHELL, LOOP.replace("FOLDER", folder)]
        fds = (theirs, told, null, self._report.write_end)
        try:
            self.number = self._sandbox.start_command(argv, fds)
        finally:
            for fd in fds:
                os.close(fd)
        async with asyncio.timeout(START_S):
            line = await self.line()
        if not line.isdigit():
            raise SandboxError("no shell could be started in the sandbox")
        self.pid = int(line)

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._answers, 4096)
            if not data:
                self._loop.remove_reader(self._answers)
                self._lines.put_nowait(b"")
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._lines.put_nowait(line)

    async def line(self) -> bytes:
        """The next answer; empty when the shell is gone."""
        return await self._lines.get()

    def ask(self, line: bytes) -> None:
        """Lets it run the script."""
        while not self._lines.empty():
            self._lines.get_nowait()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._input, line)

    async def ended(self) -> int:
        """Its exit code, once its whole tree is gone."""
        async with asyncio.timeout(START_S):
            record = await self._report.record
        if len(record) < wire.STATUS.size:
            return -9
        return os.waitstatus_to_exitcode(wire.STATUS.unpack(record)[0])

    def close(self) -> None:
        """Hangs up: the minder kills the shell and everything below it."""
        if self._input >= 0:
            self._loop.remove_reader(self._answers)
            os.close(self._input)
            os.close(self._answers)
            self._report.close()
            self._input = -1


class ShellSession:
    """A shell whose state stays from command to command; made by `NativeSandbox.session`."""

    def __init__(self, sandbox: NativeSandbox, folder: str) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._shell: _Shell | None = None
        self._count = 0
        self._turn = asyncio.Lock()
        self.restarts = 0
        """How often a new shell had to be started, because the last one exited or hung."""

    async def start(self) -> None:
        """Starts the shell, if none is running.

        Raises:
            SandboxError: the sandbox is broken, or has no shell.
        """
        if self._shell is None:
            shell = _Shell(self._sandbox)
            try:
                await shell.start(self._folder)
            except TimeoutError as error:
                shell.close()
                raise SandboxError(f"the shell did not start within {START_S} s") from error
            except BaseException:
                shell.close()
                raise
            self._shell = shell

    async def run(
        self, command: str, *, stdin: bytes | str = b"", timeout_s: float | None = None
    ) -> ExecResult:
        """Runs a command in the shell, after those before it.

        Args:
            command: what one would type; may be many lines.
            stdin: its input.
            timeout_s: wall-clock seconds; None: the spec's `exec_s`. What was started since the
                command began is killed then, the shell stays.

        Returns:
            Exit code, stdout and stderr; output beyond the spec's `max_output_bytes` is cut in the
            middle, with a mark. `killed` is "timeout" where time ran out.

        Raises:
            SandboxError: the sandbox is broken.
        """
        async with self._turn:
            await self.start()
            assert self._shell is not None
            self._count += 1
            name = f"{self._folder}/{self._count}"
            given = "/dev/null"
            if stdin:
                given = f"{name}.in"
                await self._sandbox.write(given, stdin)
            await self._sandbox.write(f"{self._folder}/script", command + "\n")
            began = time.monotonic()
            limit_s = self._sandbox.spec.exec_s if timeout_s is None else timeout_s
            self._shell.ask(f"{self._count} {given}\n".encode())
            code, killed = await self._outcome(limit_s, began)
            out, cut_out = await self._take(f"{name}.out")
            err, cut_err = await self._take(f"{name}.err")
            if stdin:
                await self._take(given)
        return ExecResult(
            exit_code=code,
            stdout=out,
            stderr=err,
            wall_s=time.monotonic() - began,
            killed=killed,
            truncated=cut_out or cut_err,
        )

    async def _outcome(self, limit_s: float, began: float) -> tuple[int, Literal["", "timeout"]]:
        shell = self._shell
        assert shell is not None
        killed: Literal["", "timeout"] = ""
        line: bytes | None = None
        for wait_s in (limit_s, INTERRUPT_S, INTERRUPT_S):
            try:
                async with asyncio.timeout(wait_s):
                    line = await shell.line()
                break
            except TimeoutError:
                killed = "timeout"
                age_ms = int(1000 * (time.monotonic() - began)) + SLACK_MS
                body = wire.KILL_BODY.pack(shell.pid, signal.SIGUSR1, age_ms)
                self._sandbox.tell(wire.KILL, shell.number, body)
        if line is not None and line.isdigit():
            return (124 if killed else int(line)), killed
        self.restarts += 1
        self._shell = None
        if line is None:
            shell.close()
            return -9, "timeout"
        code = await shell.ended()
        shell.close()
        self._sandbox.check()
        return code, killed

    async def _take(self, path: str) -> tuple[bytes, bool]:
        """A file's content, cut in the middle; the file goes."""
        try:
            fd = await self._sandbox.open_file(path, wire.TAKE)
        except SandboxError:
            raise
        except OSError:
            return b"", False
        try:
            size, most = os.fstat(fd).st_size, self._sandbox.spec.max_output_bytes
            if size <= most:
                return os.pread(fd, size, 0), False
            head = os.pread(fd, most // 2, 0)
            tail = os.pread(fd, most - len(head), size - (most - len(head)))
            return head + MARK % (size - most) + tail, True
        finally:
            os.close(fd)

    async def close(self) -> None:
        """Ends the shell and everything that it started; may be called twice."""
        shell, self._shell = self._shell, None
        if shell is not None:
            self._sandbox.tell(wire.KILL, shell.number)
            with contextlib.suppress(TimeoutError):
                await shell.ended()
            shell.close()
