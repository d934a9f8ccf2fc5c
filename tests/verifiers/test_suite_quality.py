"""Coverage and mutation score of hidden cases, measured in real sandboxes."""

import json
import math
import random

import pytest

from quintain.audits.measure import aaudit
from quintain.audits.page import to_html
from quintain.audits.trials import Pass
from quintain.envs.environment import Environment
from quintain.errors import ConfigError, TaskError, VerifierError
from quintain.task import Task
from quintain.verifiers.cases import Suite
from quintain.verifiers.quality import suite_quality
from quintain.verifiers.quality.mutants import draw
from quintain.verifiers.quality.variations import variations, varied
from quintain.verifiers.tests import Tests

CLAMP = """def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x
"""
TOTAL = """import sys

def main():
    n = int(input())
    total = 0
    for part in sys.stdin.read().split()[:n]:
        total += int(part)
    if total < 0:
        print("negative")
        sys.exit(0)
    print(total)

main()
"""
INSIDE = {"input": [5, 1, 9], "expected": 5}
BELOW = {"input": [0, 1, 9], "expected": 1}
ABOVE = {"input": [12, 1, 9], "expected": 9}
FEW = {"cases": [{"stdin": "2\n3 4\n", "stdout": "7\n"}, {"stdin": "1\n3 9\n", "stdout": "3\n"}]}


def suite(*cases, **more):
    answer = {"entry_point": "clamp", "cases": list(cases), **more}
    return Task(id="t", prompt="Clamp.", answer=answer)


async def test_a_line_that_no_case_runs_and_a_case_that_catches(bench):
    weak = suite(INSIDE, BELOW)
    found = await suite_quality(weak, CLAMP, bench, mutants=10)
    assert (found.statements, found.missing) == (6, (5,))
    assert found.coverage == pytest.approx(5 / 6)
    assert "not lines 5" in found.problems()[0]
    assert found.problems(0.8) == []
    assert 0 < found.mutation_score < 1
    caught = [each for each in found.survivors if each.case]
    assert caught
    assert all(each.assertion.startswith("assert clamp(") for each in caught)
    for each in caught:
        exec(each.assertion, {"clamp": _clamp()})
    # The cases are in the suite's notation: once added, these mutants survive no longer.
    stronger = suite(INSIDE, BELOW, *(each.case for each in caught))
    again = await suite_quality(stronger, CLAMP, bench, mutants=10)
    assert {each.diff for each in again.survivors} == {
        each.diff for each in found.survivors if not each.case
    }
    assert again.mutation_score > found.mutation_score
    data = json.loads(json.dumps(found.to_json()))
    assert data["missing"] == [5]
    assert data["survivors"][0]["diff"].startswith("@@")


def _clamp():
    names = {}
    exec(CLAMP, names)
    return names["clamp"]


async def test_a_whole_suite_leaves_only_mutants_of_the_same_meaning(bench):
    found = await suite_quality(suite(INSIDE, BELOW, ABOVE), CLAMP, bench, mutants=14, inputs=20)
    assert found.coverage == 1.0
    assert found.problems() == []
    # `x < low` as `x <= low` returns the same: no input tells, and none is made up.
    same = {each.diff.splitlines()[-1] for each in found.survivors if not each.case}
    assert same <= {"+    if x <= low:", "+    if x >= high:"}


async def test_programs(bench):
    task = Task(id="p", prompt="Sum.", answer=FEW)
    found = await suite_quality(task, TOTAL, bench, mutants=8, inputs=40)
    assert found.missing == (9, 10)
    assert any(each.assertion.startswith("assert run(") for each in found.survivors)


async def test_coverage_alone_makes_no_mutants(bench):
    found = await suite_quality(suite(INSIDE), CLAMP, bench, mutants=0)
    assert (found.missing, found.mutants, found.survivors) == ((3, 5), 0, ())
    assert math.isnan(found.mutation_score)
    assert found.to_json()["mutation_score"] is None


async def test_a_checker_decides_over_mutants_as_over_answers(bench):
    checker = "def check(given, expected, output): return output == expected"
    found = await suite_quality(suite(INSIDE, checker=checker), CLAMP, bench, mutants=2, inputs=3)
    assert found.mutants == 2


async def test_what_cannot_be_measured_is_said(bench):
    with pytest.raises(TaskError, match="fails the reference: case"):
        await suite_quality(suite({"input": [5, 1, 9], "expected": 6}), CLAMP, bench)
    with pytest.raises(TaskError, match="fails the reference"):
        await suite_quality(suite(INSIDE), "def clamp(", bench)
    # A reference that sees it is traced, and then ends.
    shy = "import sys\ndef clamp(*_):\n    return 5 if sys.gettrace() is None else 1 / 0\n"
    with pytest.raises(VerifierError, match=r"(?s)no trace of the reference.*ZeroDivision"):
        await suite_quality(suite(INSIDE), shy, bench, mutants=0)


def test_mutants_differ_in_meaning_and_spread_over_the_lines():
    found = draw(TOTAL, 10, seed=3)
    assert found == draw(TOTAL, 10, seed=3)
    assert found != draw(TOTAL, 10, seed=4)
    assert len({each.code for each in found}) == 10
    assert {each.line for each in found} == {5, 6, 8, 10}
    assert all(each.code != TOTAL and each.diff for each in found)
    # An empty file, and one with nothing to change.
    assert draw("", 5) == draw("x = y\n", 5) == []


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cosmic_ray.mutating", None)
    with pytest.raises(ConfigError, match=r"quintain\[audit\]"):
        draw(CLAMP, 3)


@pytest.mark.parametrize(
    "value",
    [
        True,
        7,
        -2,
        1.5,
        "ab1",
        b"ab",
        [1, 2],
        [],
        (1, "x"),
        (),
        {1, 2},
        {"a": 1},
        {},
        None,
        [[1], [2]],
    ],
)
def test_variations_keep_the_type(value):
    rng = random.Random(0)
    made = [varied(value, rng) for _ in range(50)]
    assert all(type(each) is type(value) for each in made)
    if value:
        assert any(each != value for each in made)


def test_variations_are_new_and_well_formed():
    known = Suite.of(suite(INSIDE, BELOW, ABOVE))
    made = variations(known, 40, seed=1)
    assert made == variations(known, 40, seed=1)
    assert len(made) == 40
    assert all(len(each) == 3 and all(type(n) is int for n in each) for each in made)
    assert not [each for each in made if each in [case.input for case in known.cases]]
    programs = variations(Suite.of(Task(id="p", prompt="p", answer=FEW)), 20)
    assert all(type(each) is str for each in programs)


async def test_an_audit_reports_and_gates():
    weak = suite(INSIDE, BELOW).model_copy(update={"split": "eval"})
    environment = Environment(
        [weak], Tests(), name="weak", oracle=lambda _: [f"```python\n{CLAMP}```"]
    )
    report = await aaudit(
        environment, passes=[Pass("once", 2)], sources=["gold"], probes=False, mutants=8
    )
    assert "suite quality" not in report.unmeasured
    assert any("runs 83% of its reference" in problem for problem in report.problems())
    assert report.to_json()["suites"][0]["missing"] == [5]
    assert report.survivors
    assert report.survivors[0].replace("<", "&lt;").partition("`")[0] in to_html(report, "weak")
    assert "83% of the reference's lines run" in str(report)


async def test_an_audit_names_what_it_did_not_measure():
    whole = suite(INSIDE).model_copy(update={"split": "eval"})
    once = {"passes": [Pass("once", 2)], "sources": ["non-solvers"], "probes": False}
    report = await aaudit(Environment([whole], Tests(), name="no-oracle"), **once)
    assert report.unmeasured["suite quality"] == "the environment has no oracle"
