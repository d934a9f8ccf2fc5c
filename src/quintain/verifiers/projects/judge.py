"""Runs a project's tests: rooms, files, and the way between the tests and the solution.

Form `apart`: two clean rooms. One holds the trusted repository, the hidden tests, pytest, and
stubs in the place of the solution; the other holds the candidate's code. This process carries
requests and answers between the two as words of base64 whose content it does not look into. The
outcome is what pytest says in the first room, where no code of the candidate ever is.
"""

from __future__ import annotations

import ast
import asyncio
import json
import posixpath
import re
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from quintain.errors import CapabilityError, VerifierError
from quintain.protocols import JudgeContext, PythonConsole, PythonResult, Pythons, Sandbox
from quintain.task import SandboxSpec
from quintain.verdict import Check
from quintain.verifiers import shipped
from quintain.verifiers.fences import fenced_code
from quintain.verifiers.projects.interface import classes_of
from quintain.verifiers.projects.patch import BadPatch, apply_patch, touched
from quintain.verifiers.projects.room_values import from_line, to_line
from quintain.verifiers.projects.sources import (
    Patterns,
    Unsuitable,
    check_size,
    from_folder,
    shadows,
)
from quintain.verifiers.projects.suite import Project
from quintain.verifiers.projects.verdicts import checks_of

HERE = Path(__file__).parent
START_S = 60.0
"""Allowed to a room beyond the tests' own time, for unpacking and starting."""
MAX_ANSWER_BYTES = 16_000_000
MAX_PRINTED = 20_000
"""Characters that one call's output hands on to the tests."""
_FENCE = re.compile(r"^```[ \t]*(?:diff|patch|udiff)?[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.M)
_WORD = re.compile(r"'([A-Za-z0-9+/=]*)'")
_NO_CONFIG = "/tmp/judge.ini"


@dataclass(slots=True)
class Limits:
    """How long a project may take."""

    cpu_s: float
    """CPU seconds of one call."""
    wall_s: float
    """Wall-clock backstop of one call."""
    total_s: float
    """Wall-clock seconds of everything."""
    max_output_bytes: int


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    checks: list[Check] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def failure(self) -> Check | None:
        """The first check that did not pass."""
        return next((check for check in self.checks if not check.passed), None)


@dataclass(slots=True)
class Clock:
    """When it has to be over, and whose time that is."""

    until: float
    deadline: float
    """The judge's own."""

    def left(self) -> float:
        """Seconds.

        Raises:
            VerifierError: the judge's deadline is over.
        """
        now = time.monotonic()
        if now >= self.deadline:
            raise VerifierError("no time is left for the tests; give the judge a later deadline")
        return min(self.until, self.deadline) - now


async def judge_project(
    context: JudgeContext,
    project: Project,
    source: str,
    limits: Limits,
    *,
    sandbox: SandboxSpec | None = None,
    python: str = "python3",
) -> Outcome:
    """Takes the candidate's files and runs the tests on them.

    Args:
        context: of the verdict.
        project: what the task declares.
        source: `text`: a diff, or the code of the only source file, in the final message; else the
            project's folder in the episode's sandbox.
        limits: of time and output.
        sandbox: the clean room, where the task names none.
        python: the interpreter in the clean room.

    Raises:
        VerifierError: a room could not be used, or a trusted file is at fault.
        SandboxError: a room died.
    """
    spec = context.task.sandbox or sandbox or SandboxSpec()
    out = Outcome()
    try:
        files, left = await _taken(context, project, source, spec)
        _check_shadows(context, project, files)
    except (Unsuitable, BadPatch) as error:
        out.checks.append(Check(name="source", passed=False, detail=str(error)[:1000]))
        return out
    ignored = f"not taken: {', '.join(left)[:500]}" if left else ""
    out.checks.append(Check(name="source", passed=bool(files), detail=ignored))
    out.metrics["source_files"] = float(len(files))
    if not files:
        return out
    now = time.monotonic()
    clock = Clock(now + limits.total_s + START_S, context.deadline)
    if project.form == "apart":
        await _Apart(context, project, spec, limits, clock, python).run(files, out)
    else:
        from quintain.verifiers.projects.together import run_together

        await run_together(context, project, spec, limits, clock, python, files, out)
    return out


# --- the candidate's files ---


async def _taken(
    context: JudgeContext, project: Project, source: str, spec: SandboxSpec
) -> tuple[dict[str, bytes], list[str]]:
    patterns = Patterns(project.source)
    if source != "text":
        return await from_folder(context, source, patterns)
    text = context.trajectory.text
    found = _FENCE.findall(text)
    patch = str(found[-1]) if found else text
    paths = touched(patch)
    if not paths:
        only = patterns.single
        if only is None:
            raise Unsuitable("the final message holds no patch")
        code = fenced_code(text)
        return ({only: code.encode("utf-8", "replace")} if code.strip() else {}), []
    base = _base(context)
    if not all(path in base for path in paths) and spec.image is not None:
        base = {**await _from_image(context, spec, paths), **base}
    changed = apply_patch(patch, base)
    files = {path: data for path, data in base.items() if patterns.takes(path)}
    left = []
    for path, data in changed.items():
        if not patterns.takes(path):
            left.append(path)
        elif data is None:
            files.pop(path, None)
        else:
            files[path] = data
    check_size(files)
    return files, left


def _base(context: JudgeContext) -> dict[str, bytes]:
    return {posixpath.normpath(path): data for path, data in context.task.files.items()}


async def _from_image(
    context: JudgeContext, spec: SandboxSpec, paths: Sequence[str]
) -> dict[str, bytes]:
    """The files of an image that a patch changes, as they were."""
    room = await context.open_sandbox(spec)
    try:
        found = {}
        for path in paths:
            try:
                found[path] = await room.read(path)
            except TimeoutError:
                raise
            except OSError:
                continue  # a new file; the patch tells
        return found
    finally:
        await room.close()


def _check_shadows(context: JudgeContext, project: Project, files: Mapping[str, bytes]) -> None:
    base = _base(context)
    for path in files:
        name = shadows(path, project.paths)
        if name and path not in base:
            raise Unsuitable(f"{path} would stand in for the module {name}")


# --- rooms ---


async def open_room(
    context: JudgeContext, spec: SandboxSpec, files: Mapping[str, bytes], stale: Patterns
) -> Sandbox:
    """A clean room with these files, no history, and no file of the image that `stale` names."""
    room = await context.open_sandbox(spec)
    try:
        if spec.image is not None:
            # What an image holds of the sources is older than what was taken; its history may
            # hold the solution.
            code = _CLEAN.format(patterns=[match.pattern for match in stale._matches])
            done = await room.exec(["python3", "-I", "-c", code], timeout_s=START_S)
            if not done.ok:
                raise VerifierError(f"the clean room cannot be cleaned: {done.error_text[-500:]}")
        for path, data in files.items():
            await room.write(path, data)
    except BaseException:
        await room.close()
        raise
    return room


_CLEAN = """
import os, re, shutil
matches = [re.compile(pattern) for pattern in {patterns!r}]
for folder, folders, files in os.walk("."):
    for name in list(folders):
        if name in (".git", ".hg", ".svn"):
            shutil.rmtree(os.path.join(folder, name))
            folders.remove(name)
    for name in files:
        path = os.path.normpath(os.path.join(folder, name))
        if name == ".git" or any(match.fullmatch(path) for match in matches):
            os.unlink(path)
"""


async def console_of(room: Sandbox) -> PythonConsole:
    """A Python session.

    Raises:
        CapabilityError: the backend has none.
    """
    if "python" not in room.capabilities:
        raise CapabilityError(
            "form 'apart' needs sandboxes with Python sessions (capability \"python\")"
        )
    return await cast("Pythons", room).python()


@cache
def tools() -> bytes:
    """pytest and the tests' side of the border, as a ZIP file."""
    names = shipped.distributions("pytest", "projects", without=("pygments", "colorama"))
    more = {
        f"room_{part}.py": (HERE / f"room_{part}.py").read_text(encoding="utf-8")
        for part in ("values", "tests", "guard")
    }
    return shipped.archive(names, more, compiled=False)


def roots(spec: SandboxSpec, project: Project) -> list[str]:
    """The folders to import from."""
    return [posixpath.normpath(posixpath.join(spec.workdir, path)) for path in project.paths]


def pytest_job(spec: SandboxSpec, project: Project) -> dict[str, Any]:
    """What the tests' side is told."""
    return {
        "root": spec.workdir,
        "config": project.config or _NO_CONFIG,
        "plugins": list(project.plugins),
        "tests": list(project.tests),
        "paths": roots(spec, project),
        "interface": project.table,
    }


def trusted_files(context: JudgeContext, project: Project) -> dict[str, bytes]:
    """The repository without its sources, the hidden files, and pytest."""
    patterns = Patterns(project.source)
    files = {path: data for path, data in _base(context).items() if not patterns.takes(path)}
    files |= {posixpath.normpath(path): data for path, data in context.task.hidden_files.items()}
    return {**files, _NO_CONFIG: b"[pytest]\n", "/tmp/judge.zip": tools()}


class _Apart:
    """One verdict of form `apart`."""

    def __init__(
        self,
        context: JudgeContext,
        project: Project,
        spec: SandboxSpec,
        limits: Limits,
        clock: Clock,
        python: str,
    ) -> None:
        self.context, self.project, self.spec = context, project, spec
        self.limits, self.clock, self.python = limits, clock, python
        self.calls = 0
        self.broken = ""

    async def run(self, files: Mapping[str, bytes], out: Outcome) -> None:
        """Starts both sides, carries between them, and reads the reports."""
        patterns = Patterns(self.project.source)
        room_bytes = max(self.spec.max_output_bytes, self.limits.max_output_bytes)
        spec = self.spec.model_copy(update={"max_output_bytes": room_bytes})
        testing = spec.model_copy(update={"max_output_bytes": 2 * room_bytes + MAX_ANSWER_BYTES})
        theirs = {k: v for k, v in _base(self.context).items() if not patterns.takes(k)} | dict(
            files
        )
        rooms = await _both(
            open_room(self.context, spec, theirs, patterns),
            open_room(self.context, testing, trusted_files(self.context, self.project), patterns),
        )
        try:
            solution, tests = await console_of(rooms[0]), await console_of(rooms[1])
            why = await self._start_solution(solution)
            out.checks.append(Check(name="import", passed=not why, detail=why))
            if not why:
                told = await self._run_tests(solution, tests)
                if self.broken:
                    out.checks.append(Check(name="solution", passed=False, detail=self.broken))
                out.checks += checks_of(self.project.expected, told) if told else []
        finally:
            for room in rooms:
                await room.close()
        out.metrics["calls"] = float(self.calls)

    async def _start_solution(self, console: PythonConsole) -> str:
        """Imports the declared modules; why that failed."""
        job = {
            "paths": roots(self.spec, self.project),
            "modules": list(self.project.interface),
            "classes": classes_of(self.project.table),
            "cpu_s": self.limits.cpu_s,
        }
        for part in ("values", "solution"):
            await console.run(_side(part), timeout_s=self.clock.left())
        result = await console.run(
            f"start({to_line(job)!r})", timeout_s=min(self.limits.wall_s, self.clock.left())
        )
        line, why = self._answer(result)
        if why:
            return f"importing the solution: {why}"
        try:
            return str(from_line(line).get("failed", ""))
        except (ValueError, AttributeError):
            return "importing the solution gave no answer"

    async def _run_tests(self, solution: PythonConsole, tests: PythonConsole) -> dict[str, Any]:
        driver = _side("driver")
        await tests.run(driver, timeout_s=self.clock.left())
        message = await self._tests_say(tests, "begin", pytest_job(self.spec, self.project))
        while "ask" in message:
            reply = await self._ask(solution, message["ask"])
            if self.broken:
                return {}
            message = await self._tests_say(tests, "step", reply)
            if time.monotonic() > self.clock.until - START_S:
                self.broken = f"the tests took more than {self.limits.total_s:g} s"
                return {}
        if "end" not in message:
            if self.broken:
                return {}
            raise VerifierError(
                f"the tests did not run: {str(message.get('died', message))[-1500:]}"
            )
        return dict(message["end"])

    async def _tests_say(
        self, console: PythonConsole, do: str, message: dict[str, Any]
    ) -> dict[str, Any]:
        """Hands a message to the tests' side, and its next one."""
        line = to_line(message)
        result = await console.run(f"{do}({line!r})", timeout_s=self.clock.left())
        if result.killed == "timeout":
            self.clock.left()
            self.broken = f"the tests took more than {self.limits.total_s:g} s"
            return {"died": "late"}
        if not result.ok or result.truncated:
            what = result.killed or ("cut" if result.truncated else "error")
            raise VerifierError(f"the tests' side failed ({what}): {result.error[-1000:]}")
        said: dict[str, Any] = json.loads(ast.literal_eval(result.value))
        return said

    async def _ask(self, console: PythonConsole, request: str) -> dict[str, Any]:
        self.calls += 1
        wall_s = min(self.limits.wall_s, self.clock.left())
        result = await console.run(f"answer({request!r})", timeout_s=wall_s)
        line, self.broken = self._answer(result)
        return {
            "line": line,
            "out": result.text[:MAX_PRINTED],
            "err": result.error_text[:MAX_PRINTED],
        }

    def _answer(self, result: PythonResult) -> tuple[str, str]:
        """The word that the solution's side answered with, or why there is none."""
        if result.restarted or result.killed:
            if result.killed == "timeout":
                self.clock.left()
            limit = {"timeout": "over the wall-clock limit", "": "or used up its CPU seconds"}
            why = limit.get(result.killed, f"over a limit: {result.killed}")
            return "", f"the solution's process ended, {why}"
        found = _WORD.fullmatch(result.value)
        if result.error or result.truncated or not found:
            return "", "the solution's process gave no answer"
        return found[1], ""


@cache
def _side(name: str) -> str:
    return (HERE / f"room_{name}.py").read_text(encoding="utf-8") + "\n"


async def _both(*opening: Coroutine[Any, Any, Sandbox]) -> list[Sandbox]:
    """Opens rooms side by side; all of them, or none is left."""
    found = await asyncio.gather(*opening, return_exceptions=True)
    rooms = [each for each in found if not isinstance(each, BaseException)]
    for each in found:
        if isinstance(each, BaseException):
            for room in rooms:
                await room.close()
            raise each
    return rooms
