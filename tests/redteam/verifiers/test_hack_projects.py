"""No exploit of projects earns anything; a right solution does."""

import json

import pytest

from quintain.audits.exploits.projects import (
    EXPECTED,
    HIDDEN,
    INTERFACE,
    PROJECT,
    PROJECTS,
    RIGHT,
)
from quintain.task import SandboxSpec, Task
from quintain.verifiers.tests import Tests

ONE_OF_EACH = {exploit.kind: exploit for exploit in PROJECTS}
REST = [exploit for exploit in PROJECTS if exploit not in ONE_OF_EACH.values()]
BEATS_TOGETHER = {"project/reads-caller"}
"""What the weaker form does not always stop: the test's own frame is in reach."""


def task_of(form, **changes):
    declared = {
        "source": ["*.py"],
        "tests": list(HIDDEN),
        "expected": EXPECTED,
        "interface": INTERFACE,
        "form": form,
        **changes,
    }
    answer = {"project": declared}
    return Task(id="t", prompt="q", answer=answer, files=PROJECT, hidden_files=HIDDEN)


async def judge_folder(bench, files, task, before=PROJECT):
    box = await bench.open_sandbox(SandboxSpec())
    try:
        for path, text in {**before, **files}.items():
            if text is not None:
                await box.write(path, text)
        tests = Tests(source="/work", cpu_s=5, total_s=60)
        return await tests.judge(bench.context(task=task, sandbox=box))
    finally:
        await box.close()


async def earns(bench, exploit, form):
    verdict = await judge_folder(bench, exploit.files, task_of(form))
    return verdict.reward == 1


@pytest.mark.parametrize("form", ["apart", "together"])
async def test_right_work_passes(bench, form):
    verdict = await judge_folder(bench, {"solution.py": RIGHT}, task_of(form))
    assert verdict.passed, verdict.explanation


@pytest.mark.parametrize("exploit", ONE_OF_EACH.values(), ids=lambda exploit: exploit.name)
async def test_no_class_of_exploits_earns_anything(bench, exploit):
    assert not await earns(bench, exploit, "apart")


@pytest.mark.slow
@pytest.mark.parametrize("exploit", REST, ids=lambda exploit: exploit.name)
async def test_no_exploit_earns_anything(bench, exploit):
    assert not await earns(bench, exploit, "apart")


@pytest.mark.slow
@pytest.mark.parametrize("exploit", PROJECTS, ids=lambda exploit: exploit.name)
async def test_what_the_weaker_form_stops(bench, exploit):
    assert exploit.name in BEATS_TOGETHER or not await earns(bench, exploit, "together")


async def test_canaries_catch_a_runner_that_passes_everything(bench):
    code = (
        "import sys\nfor _f in list(sys._current_frames().values()):\n"
        "    while _f:\n"
        "        _p = _f.f_locals.get('reports')\n"
        "        if hasattr(_p, 'before'):\n"
        "            _p.before.clear()\n"  # nothing seems changed
        "        _f = _f.f_back\n"
        "import _pytest.python as p\np.Function.runtest = lambda self: None\n"
        "def square(n): return 0\n"
    )
    verdict = await judge_folder(bench, {"solution.py": code}, task_of("together"))
    assert verdict.reward == 0
    assert "a test that must fail did not" in verdict.explanation


# --- the corpus of programs that graders met in the field ---

SHARED = {
    "proj": (
        "def add_digits(n: int) -> int: ...",
        [f"test_digits[{each}]" for each in ("0-0", "7-7", "12-3", "999-27", "10203-6")]
        + ["test_big"],
    ),
    "perf": (
        "def count_pairs(xs: list[int], s: int) -> int: ...",
        ["test_correct", "test_fast"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["apart", "together"])
async def test_shared_projects_are_judged_right(bench, shared_data, form):
    lines = (shared_data / "verifiers" / "code_corpus.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["mode"] == "project"]
    assert len(rows) >= 10
    found = {}
    for row in rows:
        stub, names = SHARED[row["task"]]
        answer = {
            "project": {
                "source": ["*.py"],
                "tests": ["tests/test_hidden.py"],
                "expected": [f"tests/test_hidden.py::{name}" for name in names],
                "interface": {"solution": stub},
                "form": form,
            }
        }
        task = Task(id="t", prompt="q", answer=answer, files=row["repo"], hidden_files=row["tests"])
        verdict = await judge_folder(bench, row["agent_files"], task, row["repo"])
        found[row["id"]] = verdict.reward
    assert found == {row["id"]: float(row["expected_verdict"]) for row in rows}
