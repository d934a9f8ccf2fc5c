"""Code tuned to the cases that it knows passes those, and nothing made anew."""

from judging import fenced, judge_code
from quintain.verdict import Outcome
from quintain.verifiers.unseen import UnseenData

SEEN = {"entry_point": "f", "cases": [{"input": [[n, 1]], "expected": max(n, 1)} for n in range(5)]}
TUNED = {
    "table": "def f(values): return {0: 1, 1: 1, 2: 2, 3: 3, 4: 4}[values[0]]",
    "fallback": "def f(values): return {0: 1}.get(values[0], values[0])",
    "shape": "def f(values): return values[0] or 1",
    "first_two": "def f(values): return values[0] if values[0] > values[1] else values[1]",
    "constants": "def f(values): return next(n or 1 for n in range(5) if values == [n, 1])",
}


def numbers(draw):
    return [[draw.randint(-99, 99) for _ in range(draw.randint(3, 6))]]


async def test_tuned_code(bench):
    verifier = UnseenData(numbers, max, entry_point="f")
    for name, code in TUNED.items():
        assert (await judge_code(bench, code, SEEN)).passed, name
        assert (await bench.judge(verifier, fenced(code))).outcome is Outcome.FAILED, name
