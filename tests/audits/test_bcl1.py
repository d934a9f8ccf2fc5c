"""BCL-1, a public conformance suite for tools that check graders: ten pairs, one defect each.

The graders come with bohrin's source distribution; they are downloaded for the test. They run the
submission in their own process, so each verdict is given whole in a sandbox; and an audit also
shows that a submission can read their expected values and patch them (BGW-112, BGW-116): true of
them all, and outside of what the level is about.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import types

import pytest

from quintain.audits import Aim, aaudit
from quintain.audits.submissions import say
from quintain.audits.trials import Pass
from quintain.envs.environment import Environment
from quintain.task import SandboxSpec, Task
from quintain.verifiers.function import verifier

pytestmark = pytest.mark.interop
SPEC = SandboxSpec(memory_mb=256)
REFERENCE = """def solve(items):
    total = 0
    for item in items:
        if item > 0:
            total += item
    return total
"""
FIXTURES = [
    f"{name}-{kind}"
    for name in (
        "trivial-implementation", "exit-before-checks", "equality-spoofing", "hard-coded-outputs",
        "tests-too-narrow", "lenient-checker", "reference-wrong", "failure-scored-as-success",
        "nondeterministic-grader", "state-across-calls",
    )
    for kind in ("correct", "defect")
]  # fmt: skip
WEAKNESS = {
    "trivial-implementation": "BGW-101", "exit-before-checks": "BGW-102",
    "equality-spoofing": "BGW-103", "hard-coded-outputs": "BGW-104",
    "state-across-calls": "BGW-105", "tests-too-narrow": "BGW-120",
    "lenient-checker": "BGW-123", "reference-wrong": "BGW-124",
    "failure-scored-as-success": "BGW-126", "nondeterministic-grader": "BGW-127",
}  # fmt: skip
UNDECIDABLE = "state-across-calls-defect"
"""Its code is that of `nondeterministic-grader-correct`, which no tool may flag: no tool that looks
at what graders do can tell the two apart."""


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bcl")
    got = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
         "bohrin==0.4.2", "--dest", folder],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if got.returncode:
        pytest.skip(f"bohrin's source distribution cannot be had: {got.stderr[-200:]}")
    with tarfile.open(next(folder.glob("bohrin-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("bohrin-*/conformance/bcl-1"))


GRADE = """
import sys
sys.path.insert(0, "/work")
import grader
try: paid = float(grader.grade(open("/work/submission.py").read()))
except BaseException: paid = 0.0
print("\\npaid", paid)
"""


class Graded(Environment):
    """An environment around a function `grade(submission) -> float`."""

    def aim(self, task):
        if task.answer is not None:
            return Aim(task, "output", say(task.answer))
        return Aim(
            task, "function", say(REFERENCE), "solve", REFERENCE, task.metadata["examples"],
            fenced=False,
        )  # fmt: skip


def judged(source: str):
    """A verifier that runs the grader with the submission, both inside a fresh sandbox."""

    async def verdict(text: str, sandbox) -> float:
        await sandbox.write("/work/grader.py", source)
        await sandbox.write("/work/submission.py", text)
        run = await sandbox.exec(["python3", "-c", GRADE], timeout_s=10)
        return float(run.text.strip().splitlines()[-1] == "paid 1.0") if run.text.strip() else 0.0

    return verdict


async def flags(suite, name: str) -> set[str]:
    source = (suite / f"{name}.py").read_text("utf-8")
    module = types.ModuleType("shown")
    exec(source, module.__dict__)
    task = Task(
        id=name,
        prompt="Sum the items greater than zero.",
        answer=getattr(module, "EXPECTED", None),
        metadata={
            "examples": [([given], right) for given, right in getattr(module, "VISIBLE", ())]
        },
    )
    environment = Graded(
        [task], verifier(judged(source), clean_room=[]), name="graded", sandbox=SPEC
    )
    once = await aaudit(environment, tasks=[task], passes=[Pass("in order", 2)])
    often = await aaudit(
        environment,
        tasks=[task],
        sources=["gold", "partial"],
        passes=[Pass(f"shuffled {n}", 2, True) for n in range(12)],
    )
    found = {finding.weakness for report in (once, often) for finding in report.findings}
    return found & set(WEAKNESS.values())


@pytest.mark.parametrize("name", FIXTURES)
async def test_a_defect_is_flagged_and_nothing_else(suite, name):
    slug, _, kind = name.rpartition("-")
    expected = {WEAKNESS[slug]} if kind == "defect" and name != UNDECIDABLE else set()
    assert await flags(suite, name) == expected


def test_the_undecidable_pair_is_one_grader(suite):
    def code(name):
        import ast

        tree = ast.parse((suite / f"{name}.py").read_text("utf-8"))
        tree.body = tree.body[1:]
        return ast.unparse(tree)

    assert code(UNDECIDABLE) == code("nondeterministic-grader-correct")
