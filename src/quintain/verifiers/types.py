"""Does the code type-check, strictly and against a stub that it cannot touch.

The submission goes into a clean room as one module, beside a checking module made of the task's
stub (`conformance`). mypy runs there, a copy of the installed one, with a configuration of its own:
files of the candidate's that configure checkers are not taken along, comments that do are refused,
and so is whatever loses types: `Any` in any expression, `cast`, code that only the checker sees.
The candidate's code is not run. Types say little of behaviour:
put `Types` beside `Tests` (`all_of`).

`Task.answer` is `{"stub": "def f(x: int) -> str: ..."}`.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import cache

from pydantic import Field

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import JudgeContext
from quintain.record import Record
from quintain.task import SandboxSpec, Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers import shipped
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.conformance import SUBMISSION, BadStub, conformance, smuggled
from quintain.verifiers.fences import fenced_code
from quintain.verifiers.state import expectation

MAX_CODE_BYTES = 200_000
CHECKER = "mypy"
CONFIG = """[mypy]
strict = True
disallow_any_expr = {strict}
disallow_any_explicit = True
disallow_any_decorated = {strict}
disallow_any_unimported = True
warn_unreachable = True
incremental = False
cache_dir = /dev/null
no_site_packages = True
show_error_codes = True
pretty = False
[mypy-conformance]
disallow_any_explicit = False
disallow_any_expr = False
disallow_any_decorated = False
"""
PROGRAM = """
import sys, zipfile
zipfile.ZipFile("/tmp/checker.zip").extractall("/tmp/checker")
sys.path.insert(0, "/tmp/checker")
from mypy.__main__ import console_entry
sys.argv = ["mypy", "--config-file", "/tmp/checker.ini", "submission.py", "conformance.py"]
console_entry()
"""
_ERROR = re.compile(r"^(submission|conformance)\.py:(\d+): error: (.*)$", re.MULTILINE)


class Stub(Record):
    """What `Task.answer` says."""

    stub: str = Field(min_length=1)


class Types:
    """Checks the code with mypy (see the module).

    Args:
        source: `text`: the last fenced Python block of the final message, or the whole message; or
            a path in the episode's sandbox (a kept artifact when that is gone).
        any_expressions: whether expressions of type `Any` are allowed, as a library without types
            gives them. They are where types get lost.
        timeout_s: wall-clock seconds of one check; more fails the code.
        sandbox: the clean room; None: the default spec. Its Python has our version (3.x).
        name: the verifier's name.

    Raises:
        ConfigError: mypy is not installed, or the time is not positive.
    """

    def __init__(
        self,
        *,
        source: str = "text",
        any_expressions: bool = False,
        timeout_s: float = 120.0,
        sandbox: SandboxSpec | None = None,
        name: str = "types",
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is positive, got {timeout_s!r}")
        shipped.distributions(CHECKER, "types")
        self.name = name
        self.kind: Kind = "formal"
        self.source = source
        self.any_expressions = any_expressions
        self.timeout_s = timeout_s
        self.sandbox = sandbox or SandboxSpec(memory_mb=1024)

    def check_gold(self, task: Task) -> None:
        """Refuses a task without a stub that can be checked against.

        Raises:
            TaskError: what is wrong with it.
        """
        self._checking(task)

    def _checking(self, task: Task) -> str:
        try:
            return conformance(expectation(task, Stub, "stub").stub)
        except BadStub as error:
            raise TaskError(f"task {task.id!r}: {error}") from error

    async def judge(self, context: JudgeContext) -> Verdict:
        """The code type-checks and satisfies the stub, or not.

        Raises:
            TaskError: the stub is at fault.
            VerifierError: the checker could not be run.
        """
        began = time.monotonic()
        checking = self._checking(context.task)
        with boundary(VerifierError, f"verifier {self.name}"):
            code, why = await self._code(context)
            if not why:
                why = smuggled(code)
            checks = [Check(name="source", passed=not why, detail=why)]
            if not why:
                why = await self._check(context, code, checking)
                checks.append(Check(name=CHECKER, passed=not why, detail=why))
        return Verdict.of(
            not why, why or "it type-checks and satisfies the stub", checks=tuple(checks)
        ).signed(self.name, self.kind, time.monotonic() - began)

    async def _code(self, context: JudgeContext) -> tuple[str, str]:
        data: bytes | None
        if self.source == "text":
            data, why = fenced_code(context.trajectory.text).encode("utf-8", "replace"), ""
        else:
            data, why = await candidate_file(context, self.source, MAX_CODE_BYTES)
        if data is None:
            return "", f"{self.source}: {why}"
        if not data.strip():
            return "", "there is no code"
        if len(data) > MAX_CODE_BYTES:
            return "", f"the code has more than {MAX_CODE_BYTES} bytes"
        try:
            return data.decode(), ""
        except UnicodeDecodeError:
            return "", "the code is not UTF-8"

    async def _check(self, context: JudgeContext, code: str, checking: str) -> str:
        archive = await asyncio.to_thread(_archive)
        room = await context.open_sandbox(self.sandbox)
        try:
            await room.write("/tmp/checker.zip", archive)
            config = CONFIG.format(strict=not self.any_expressions)
            await room.write("/tmp/checker.ini", config)
            await room.write(f"/work/check/{SUBMISSION}.py", code)
            await room.write("/work/check/conformance.py", checking)
            left = context.deadline - time.monotonic()
            if left <= 0:
                raise VerifierError(f"{self.name}: no time is left; give the judge a later one")
            result = await room.exec(
                ["python3", "-I", "-c", PROGRAM],
                timeout_s=min(left, self.timeout_s),
                cwd="/work/check",
            )
        finally:
            await room.close()
        if result.killed:
            if result.killed == "timeout" and left < self.timeout_s:
                raise VerifierError(f"{self.name}: the judge's deadline came before the check's")
            return f"checking it went over a limit ({result.killed})"
        if result.exit_code == 0:
            return ""
        errors = _ERROR.findall(result.text)
        if not errors:
            told = (result.text + result.error_text)[-500:]
            raise VerifierError(f"{self.name}: mypy failed (exit {result.exit_code}): {told}")
        module, line, told = errors[0]
        where = f"line {line}" if module == SUBMISSION else "against the stub"
        return f"{where}: {told} ({len(errors)} errors)"


@cache
def _archive() -> bytes:
    """The checker, without what only its own tests and its compiler need."""
    names = shipped.distributions(CHECKER, "types")
    return shipped.archive(names, {}, bytecode=False, without=("mypyc/", "mypy/test/"))
