"""Programs judged on data that they never saw."""

import pytest

from judging import fenced
from quintain.errors import ConfigError, TaskError
from quintain.verdict import Outcome
from quintain.verifiers.unseen import UnseenData


def numbers(draw):
    return [[draw.randint(-99, 99) for _ in range(draw.randint(1, 6))]]


def lines(draw):
    return f"{draw.randint(0, 999)} {draw.randint(0, 999)}\n"


def added(text):
    return f"{sum(map(int, text.split()))}\n"


def largest(values):
    values.sort()
    return values[-1]


RIGHT = "def f(values): return max(values)"


async def test_a_function(bench):
    verifier = UnseenData(numbers, largest, entry_point="f", count=8)
    verdict = await bench.judge(verifier, fenced(RIGHT))
    assert (verdict.passed, verdict.verifier, verdict.kind) == (True, "unseen_data", "formal")
    assert verdict.metrics["cases"] == 8
    for wrong in ("def f(values): return 7", "def f(values): return values[0]", "", "f = 3"):
        assert (await bench.judge(verifier, fenced(wrong))).outcome is Outcome.FAILED


async def test_a_program(bench):
    verifier = UnseenData(lines, added, count=5)
    good = "print(sum(map(int, input().split())))"
    assert (await bench.judge(verifier, fenced(good))).passed
    assert not (await bench.judge(verifier, fenced("print(7)"))).passed


async def test_the_same_secret_makes_the_same_cases(bench):
    made = [
        await UnseenData(numbers, largest, entry_point="f", secret=secret)._cases(
            bench.context(), 3
        )
        for secret in ("a", "b")
    ]
    assert made[0] == made[1]
    assert made[0] != await UnseenData(numbers, largest, entry_point="f")._cases(bench.context(), 4)


async def test_tasks_that_are_refused(bench):
    def fails(values):
        raise ValueError("no")

    for generate, reference in ((numbers, lambda values: 1), (numbers, fails), (fails, largest)):
        verifier = UnseenData(generate, reference, entry_point="f")
        with pytest.raises(TaskError):
            await bench.judge(verifier, fenced(RIGHT))
    with pytest.raises(ConfigError):
        UnseenData(numbers, largest, count=1)
