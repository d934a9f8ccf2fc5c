"""Tolerances, order, several right values, and checkers, by declaration."""

import json

import pytest

from judging import fenced
from quintain.errors import TaskError
from quintain.task import Task
from quintain.verifiers.cases import FunctionCase, Suite, outputs_agree, values_agree
from quintain.verifiers.plain import from_task, to_task
from quintain.verifiers.tests import Tests


def suite(expected, **more):
    any_of = more.pop("any_of", ())
    case = {"input": [1], "expected": expected, "any_of": any_of}
    return Suite.model_validate({"entry_point": "f", "cases": [case], **more})


def agrees(expected, answer, **more):
    made = suite(expected, **more)
    return values_agree(made, made.cases[0], answer)


def test_tolerances():
    assert agrees(1.0, 1.0 + 1e-12)
    assert not agrees(1.0, 1.001)
    assert agrees(1.0, 1.001, tolerance={"abs": 0.01})
    assert agrees(100.0, 101.0, tolerance={"rel": 0.02})
    assert not agrees(0.0, 0.001, tolerance={"rel": 0.02})
    assert not agrees(1.0, float("nan"), tolerance={"abs": 0.5})
    assert not agrees(5, 5.0, tolerance={"abs": 0.5})


def test_order():
    assert not agrees([1, 2, 2], [2, 1, 2])
    assert agrees([1, 2, 2], [2, 1, 2], unordered=True)
    assert not agrees([1, 2, 2], [2, 1, 1], unordered=True)
    assert not agrees([1, 2], [1, 2, 2], unordered=True)
    assert not agrees([1, 2], [True, 2], unordered=True)
    assert not agrees([[1, 2], [3]], [[2, 1], [3]], unordered=True)
    assert agrees([[1, 2], "a", None], [None, [1, 2], "a"], unordered=True)
    assert agrees([0.1, 0.2, 0.3], [0.3000001, 0.1, 0.2], unordered=True, tolerance={"abs": 1e-3})
    close = [[0.1, "a"], [0.2, "b"]]
    assert agrees(close, [[0.2001, "b"], [0.1, "a"]], unordered=True, tolerance={"abs": 1e-3})
    assert not agrees([1], "1", unordered=True)


def test_several_right_values():
    assert agrees(1, 2, any_of=[2, 3])
    assert not agrees(1, 4, any_of=[2, 3])
    streams = Suite.model_validate(
        {"cases": [{"stdin": "1", "stdout": "a", "any_of": ["b\n"]}], "compare": "tokens"}
    )
    assert outputs_agree(streams, streams.cases[0], b"b")
    assert not outputs_agree(streams, streams.cases[0], b"c")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unordered": True}, "expects no list"),
        ({"checker": "def check("}, "does not parse"),
        ({"checker": "x = 1"}, "no function 'check'"),
        ({"checker": "def check(a, b, c): return True", "tolerance": {"abs": 1}}, "decides alone"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(changes, why):
    answer = {"entry_point": "f", "cases": [{"input": [1], "expected": 1}], **changes}
    with pytest.raises(TaskError, match=why):
        Tests().check_gold(Task(id="t", prompt="q", answer=answer))


def test_values_have_a_notation():
    for value in ([1, (2, "x")], {"a": {1, 2}}, {1: b"\0"}, {"$tuple": 5}, float("inf"), None):
        assert from_task(json.loads(json.dumps(to_task(value)))) == value
    assert FunctionCase(input=[1], expected=2).any_of == ()


ROOTS = """
import json
def check(given, expected, output):
    n, root = json.loads(given)[0], json.loads(output)
    return type(root) is int and root * root == n
"""
SPLITS = """
def check(given, expected, output):
    a, b = map(int, output.split())
    return a + b == int(given) and a > 0 and b > 0
"""


async def test_a_checker_decides(bench):
    cases = [{"input": [n * n], "expected": n} for n in (2, 3)]
    answer = {"entry_point": "f", "cases": cases, "checker": ROOTS}
    for code, right in (
        ("def f(n): return -int(n ** 0.5)", True),
        ("def f(n): return 2", False),
        ("def f(n): return 'x'", False),
    ):
        verdict = await bench.judge(Tests(), fenced(code), answer)
        assert verdict.passed is right, verdict.explanation


async def test_what_makes_a_checker_fail_fails_the_answer_only(bench):
    answer = {"cases": [{"stdin": "7", "stdout": "3 4"}], "checker": SPLITS}
    for code, right in (
        ("print(1, int(input()) - 1)", True),
        ("print('none')", False),
        ("print(10, -3)", False),
    ):
        verdict = await bench.judge(Tests(), fenced(code), answer)
        assert verdict.passed is right, verdict.explanation
    wrong = {"cases": [{"stdin": "7", "stdout": "no"}], "checker": SPLITS}
    with pytest.raises(TaskError, match="does not accept what case 0 expects"):
        await bench.judge(Tests(), fenced("print(3, 4)"), wrong)
