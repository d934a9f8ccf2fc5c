"""Form `together`: tests and solution in one process, for tests that cannot do without.

Weaker than `apart`: what decides is in reach of the candidate's code. Each file of tests gets a
clean room and a process of its own. See `room_guard` for what is done against tampering, and
`docs/verifiers.md` for what that cannot stop.
"""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quintain.errors import VerifierError
from quintain.protocols import JudgeContext
from quintain.task import SandboxSpec
from quintain.verdict import Check
from quintain.verifiers.projects import judge
from quintain.verifiers.projects.sources import Patterns
from quintain.verifiers.projects.suite import Project
from quintain.verifiers.projects.verdicts import checks_of

if TYPE_CHECKING:
    from quintain.verifiers.projects.judge import Clock, Limits, Outcome

CANARIES = 3
BOOT = """
import sys, zipfile
zipfile.ZipFile("/tmp/judge.zip").extractall("/tmp/judge")
sys.path.insert(0, "/tmp/judge")
import os
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
os.environ.pop("PYTEST_ADDOPTS", None)
import room_guard
room_guard.main()
"""


async def run_together(
    context: JudgeContext,
    project: Project,
    spec: SandboxSpec,
    limits: Limits,
    clock: Clock,
    python: str,
    files: Mapping[str, bytes],
    out: Outcome,
) -> None:
    """Runs each file of tests; the first that does not pass ends it.

    Raises:
        VerifierError: the room could not run the tests, or no time is left.
    """
    trusted = judge.trusted_files(context, project)
    patterns = Patterns(project.source)
    detail = "together: the tests share a process with the solution"
    out.checks.append(Check(name="form", passed=True, detail=detail))
    for tests in project.tests:
        expected = [each for each in project.expected if each.partition("::")[0] == tests]
        canaries = [f"test_{secrets.token_hex(4)}" for _ in range(CANARIES)]
        word = secrets.token_hex(16)
        texts = {path: data for path, data in trusted.items() if path == posixpath.normpath(tests)}
        job = {
            **judge.pytest_job(spec, project),
            "tests": [tests],
            "canaries": canaries,
            "texts": {path: data.decode() for path, data in texts.items()},
            "word": word,
            "cpu_s": limits.total_s,
            "wall_s": limits.total_s,
        }
        tested = {posixpath.normpath(path) for path in project.tests}
        others = {path: data for path, data in trusted.items() if path not in tested}
        room_spec = spec.model_copy(update={"max_output_bytes": judge.MAX_ANSWER_BYTES * 4})
        room = await judge.open_room(context, room_spec, {**files, **others}, patterns)
        try:
            done = await room.exec(
                [python, "-I", "-B", "-c", BOOT],
                stdin=json.dumps(job),
                timeout_s=clock.left(),
                cwd=spec.workdir,
            )
        finally:
            await room.close()
        if done.killed == "timeout":
            clock.left()
        told, why = _told(done.text, word)
        if not told and not done.ok and not done.killed and not done.text.strip():
            raise VerifierError(f"the tests did not run: {done.error_text[-1500:]}")
        if not why:
            why = _canaries_failed(told, posixpath.normpath(tests), canaries)
        if why:
            out.checks.append(Check(name=f"report of {tests}", passed=False, detail=why))
            return
        out.checks += [
            check.model_copy(update={"name": f"set of tests in {tests}"})
            if check.name == "set of tests"
            else check
            for check in checks_of(expected, told)
        ]
        if out.failure:
            return


def _told(text: str, word: str) -> tuple[dict[str, Any], str]:
    """What the tests' process reported, and what is wrong with that."""
    try:
        outer = json.loads(text.strip().splitlines()[-1])
        if outer["why"]:
            return {}, f"over a limit ({outer['why']})"
        if outer["code"] != 0:
            return {}, f"the tests' process ended with exit code {outer['code']}"
        inner = json.loads(outer["report"])
        if inner["word"] != word or not isinstance(inner["told"], dict):
            return {}, "the report is not the plug-in's"
        return inner["told"], ""
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return {}, "the tests' process gave no whole report: it was ended early, or meddled with"


def _canaries_failed(told: dict[str, Any], tests: str, canaries: list[str]) -> str:
    """Takes the canaries out of a report; what is wrong with them."""
    try:
        names = {f"{tests}::{name}" for name in canaries}
        mine = [report for report in told["reports"] if report["id"] in names]
        failed = [r["id"] for r in mine if r["when"] == "call" and r["outcome"] == "failed"]
        told["reports"] = [r for r in told["reports"] if r["id"] not in names]
        collected = told["collected"]
        told["collected"] = [each for each in collected if each not in names]
        told["problems"] = list(told["problems"])
    except (KeyError, TypeError):
        return "the report is malformed"
    if told["problems"]:
        return ""
    if sorted(failed) != sorted(names) or len(collected) - len(told["collected"]) != len(names):
        return "a test that must fail did not: the report cannot be believed"
    return ""
