"""A persistent Python in a sandbox: names, modules and the working folder stay.

The interpreter runs `repl.py` as one long command of the sandbox. At a timeout it gets SIGINT and
what it started since the cell began is killed; where that ends the cell, everything defined so far
stays. Code that does not answer even then (a long call into C) is killed with its state, and the
result says so.

Whatever runs in the interpreter can answer in its place: value and traceback are the candidate's
word. A judge that must not be lied to uses `exec`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from functools import cache
from typing import Literal

from quintain.errors import SandboxError
from quintain.protocols import PythonResult
from quintain.sandbox import repl
from quintain.sandbox.asked import check_text, check_timeout
from quintain.sandbox.attached import START_S, Attached, Attaching

BOOT = "import sys; exec(sys.argv[2], r := {'__name__': 'repl'}); r['serve'](int(sys.argv[1]))"
INTERRUPT_S = 1.0
"""Between two interrupts; the second unanswered one is the last (times its slowness)."""
MAX_HEAD = 64


@cache
def _program() -> str:
    return inspect.getsource(repl)


def _length(data: bytearray) -> int:
    head, end, _ = data[:MAX_HEAD].partition(b"\n")
    if not end:
        return 0
    fields = head.split()
    if len(fields) != 4 or not all(field.isdigit() for field in fields):
        return len(data)
    whole = len(head) + 1 + int(fields[1]) + int(fields[2])
    return whole if len(data) >= whole else 0


def _parse(data: bytes) -> tuple[int, str, str, bool] | None:
    """PID, value, traceback and whether either was cut; None for what no answer looks like."""
    head, _, rest = data.partition(b"\n")
    fields = head.split()
    if len(fields) != 4 or not all(field.isdigit() for field in fields):
        return None
    pid, size, error, was_cut = map(int, fields)
    if len(rest) != size + error:
        return None
    text = rest[:size].decode("utf-8", "replace")
    return pid, text, rest[size:].decode("utf-8", "replace"), bool(was_cut)


class PythonSession:
    """An interpreter whose state stays from cell to cell; made by a sandbox's `python`."""

    def __init__(self, sandbox: Attaching) -> None:
        self._sandbox = sandbox
        self._python: Attached | None = None
        self._turn = asyncio.Lock()
        self.restarts = 0
        """How often the state was lost: the interpreter exited, was killed or did not answer."""

    async def start(self) -> None:
        """Starts the interpreter, if none is running.

        Raises:
            SandboxError: the sandbox is broken, or has no Python.
        """
        if self._python is not None and not self._python.current:
            self._python.close()
            self._python = None
            self.restarts += 1
        if self._python is not None:
            return
        limit = self._sandbox.spec.max_output_bytes
        python = self._sandbox.attach(2 * limit + (1 << 16))
        start_s = START_S * python.slowness
        try:
            await python.start(["python3", "-c", BOOT, str(limit), _program()])
            async with asyncio.timeout(start_s):
                first = _parse(await python.answer(_length))
            if first is None:
                await python.ended()
                said = python.err.take()[0].decode("utf-8", "replace").strip()
                raise SandboxError(f"no Python could be started in the sandbox: {said[-500:]}")
            python.pid = first[0]
        except TimeoutError as error:
            python.close()
            if isinstance(error, SandboxError):
                raise
            raise SandboxError(f"Python did not start within {start_s:g} s") from error
        except BaseException:
            python.close()
            raise
        self._python = python

    async def run(self, code: str, *, timeout_s: float | None = None) -> PythonResult:
        """Runs a cell after those before it; see `quintain.protocols.PythonConsole.run`."""
        check_text("code", code)
        check_timeout(timeout_s)
        async with self._turn:
            await self.start()
            assert self._python is not None
            python = self._python
            began = time.monotonic()
            limit_s = self._sandbox.spec.exec_s if timeout_s is None else timeout_s
            killed: Literal["", "timeout", "memory", "pids"] = ""
            value, error, was_cut = "", "", False
            try:
                await python.ask(code.encode("utf-8", "surrogateescape"), b"+")
                answer, timed_out = await self._answer(python, limit_s)
                if timed_out:
                    await python.clear()
                if answer is not None:
                    _, value, error, was_cut = answer
                    killed = "timeout" if timed_out else ""
                else:
                    self.restarts += 1
                    killed, error = await self._end(python, timed_out)
            except BaseException:
                # Nobody will take its answer, which must not be the next cell's.
                self._python = None
                python.close()
                raise
            (out, cut_out), (err, cut_err) = python.out.take(), python.err.take()
            if answer is None:
                self._python = None
                python.close()
            return PythonResult(
                value=value,
                stdout=out,
                stderr=err,
                error=error,
                killed=killed,
                restarted=answer is None,
                truncated=was_cut or cut_out or cut_err,
                wall_s=time.monotonic() - began,
            )

    async def _answer(
        self, python: Attached, limit_s: float
    ) -> tuple[tuple[int, str, str, bool] | None, bool]:
        timed_out = False
        for wait_s in (limit_s, *[INTERRUPT_S] * round(2 * python.slowness)):
            try:
                async with asyncio.timeout(wait_s):
                    return _parse(await python.answer(_length)), timed_out
            except TimeoutError:
                timed_out = True
                await python.interrupt(signal.SIGINT)
        return None, True

    async def _end(
        self, python: Attached, timed_out: bool
    ) -> tuple[Literal["", "timeout", "memory", "pids"], str]:
        """How an interpreter without an answer ended: the limit, and words for the result."""
        if timed_out:
            await python.kill()
            return "timeout", "the code did not stop; the interpreter was killed, its state is lost"
        ended = await python.ended()
        self._sandbox.check()
        code = os.waitstatus_to_exitcode(ended.status)
        killed: Literal["", "memory", "pids"] = ""
        if code:
            killed = "memory" if ended.ooms else "pids" if ended.refused else ""
        return killed, f"the interpreter ended with exit code {code}; its state is lost"

    async def close(self) -> None:
        """Ends the interpreter and everything that it started; may be called twice."""
        python, self._python = self._python, None
        if python is not None:
            await python.kill()
            python.close()
