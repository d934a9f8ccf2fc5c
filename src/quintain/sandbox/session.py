"""A persistent shell in a sandbox: the working folder, variables, functions and jobs stay.

The shell runs as one long command of the sandbox and sources one script after the other (see
`attached.py`); between them the owner keeps reading its output, so background jobs never block, and
what they print shows with the next command, as in a terminal.

At a timeout the sandbox's first process signals the shell (whose trap returns from the script) and
kills what was started since the command began, so earlier background jobs stay. A shell that does
not answer even then, or that exited, is ended with its whole tree; stderr says so, and the next
command gets a new one.

The exit code is the shell's own word. A judge that must not be lied to uses `exec`, whose status
comes from waitpid.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Literal

from quintain.errors import SandboxError
from quintain.protocols import ExecResult
from quintain.sandbox.asked import check_text, check_timeout
from quintain.sandbox.attached import START_S, Attached, Attaching

LOOP = """
trap 'return 124' USR1
echo $$ >&5
while IFS= read -r REPLY <&4; do
  . /proc/self/fd/6 <"$REPLY" 4<&- 5>&-
  printf '%s\\n' "$?" >&5
done
"""
SHELLS = (("bash", "--noprofile", "--norc"), ("sh",))
INTERRUPT_S = 1.0
"""Between two interrupts; the second unanswered one is the last (times its slowness)."""
MAX_ANSWER_BYTES = 1 << 16
LOST = "the shell {how}: what was set in it is lost, the next command gets a new one\n"


def _line(data: bytearray) -> int:
    return data.find(b"\n") + 1


class ShellSession:
    """A shell whose state stays from command to command; made by a sandbox's `session`."""

    def __init__(self, sandbox: Attaching, folder: str) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._shell: Attached | None = None
        self._count = 0
        self._turn = asyncio.Lock()
        self.restarts = 0
        """How often a new shell had to be started, because the last one exited or hung."""

    async def start(self) -> None:
        """Starts the shell, if none is running.

        Raises:
            SandboxError: the sandbox is broken, or has no shell.
        """
        if self._shell is not None and not self._shell.current:
            self._shell.close()
            self._shell = None
            self.restarts += 1
        for argv in SHELLS if self._shell is None else ():
            shell = self._sandbox.attach(MAX_ANSWER_BYTES)
            start_s = START_S * shell.slowness
            try:
                await shell.start([*argv, "-c", LOOP])
                async with asyncio.timeout(start_s):
                    line = await shell.answer(_line)
                if line.strip().isdigit():
                    shell.pid = int(line)
                    self._shell = shell
                    return
                await shell.ended()
            except TimeoutError as error:
                shell.close()
                if isinstance(error, SandboxError):
                    raise
                raise SandboxError(f"the shell did not start within {start_s:g} s") from error
            except BaseException:
                shell.close()
                raise
            shell.close()
        if self._shell is None:
            raise SandboxError("no shell could be started in the sandbox")

    async def run(
        self, command: str, *, stdin: bytes | str = b"", timeout_s: float | None = None
    ) -> ExecResult:
        """Runs a command in the shell, after those before it; see `quintain.protocols.Session`."""
        check_text("a command", command)
        check_timeout(timeout_s)
        async with self._turn:
            await self.start()
            assert self._shell is not None
            shell = self._shell
            self._count += 1
            given = "/dev/null"
            if stdin:
                given = f"{self._folder}/{self._count}.in"
                await self._sandbox.write(given, stdin)
            began = time.monotonic()
            limit_s = self._sandbox.spec.exec_s if timeout_s is None else timeout_s
            try:
                await shell.ask(command.encode() + b"\n", f"{given}\n".encode())
                code, killed, lost = await self._outcome(shell, limit_s)
            except BaseException:
                # Nobody will take its answer, which must not be the next command's.
                self._shell = None
                shell.close()
                raise
            (out, cut_out), (err, cut_err) = shell.out.take(), shell.err.take()
            wall_s = time.monotonic() - began
            if self._shell is None:
                shell.close()
            if stdin:
                await self._sandbox.discard(given)
        return ExecResult(
            exit_code=code,
            stdout=out,
            stderr=err + lost.encode(),
            wall_s=wall_s,
            killed=killed,
            truncated=cut_out or cut_err,
        )

    async def _outcome(
        self, shell: Attached, limit_s: float
    ) -> tuple[int, Literal["", "timeout"], str]:
        """Exit code, the limit that ended it, and words where the shell is lost."""
        killed: Literal["", "timeout"] = ""
        line: bytes | None = None
        for wait_s in (limit_s, *[INTERRUPT_S] * round(2 * shell.slowness)):
            try:
                async with asyncio.timeout(wait_s):
                    line = await shell.answer(_line)
                break
            except TimeoutError:
                killed = "timeout"
                await shell.interrupt(signal.SIGUSR1)
        if killed:
            await shell.clear()
        if line is not None and line.strip().isdigit():
            return (124 if killed else int(line)), killed, ""
        self.restarts += 1
        self._shell = None
        if line is None:
            await shell.kill()
            return -9, "timeout", LOST.format(how="did not stop and was killed")
        ended = await shell.ended()
        self._sandbox.check()
        code = os.waitstatus_to_exitcode(ended.status)
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        return code, killed, LOST.format(how=how)

    async def close(self) -> None:
        """Ends the shell and everything that it started; may be called twice."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.kill()
            shell.close()
