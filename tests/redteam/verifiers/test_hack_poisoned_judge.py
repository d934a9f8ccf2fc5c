"""An answer that runs code inside a careless judge's function harms that one call only."""

import os

from quintain.verdict import Outcome
from quintain.verifiers.function import verifier


def careless(text, answer):
    return eval(text) == answer


async def test_a_patched_interpreter_does_not_outlive_the_call(bench):
    judge = verifier(careless)
    poison = (
        "[setattr(__import__('builtins'), 'eval', lambda *a: 42), "
        "__import__('sys').modules.update(re=None)] and 0"
    )
    assert (await bench.judge(judge, poison, 42)).outcome is Outcome.FAILED
    for _ in range(5):
        assert (await bench.judge(judge, "41", 42)).outcome is Outcome.FAILED
        assert (await bench.judge(judge, "6 * 7", 42)).outcome is Outcome.SOLVED


async def test_a_hang_is_the_candidates_and_costs_nobody_else(bench):
    judge = verifier(careless, deadline_s=0.5)
    assert (await bench.judge(judge, "9 ** 9 ** 9 ** 9", 42)).outcome is Outcome.FAILED
    assert (await bench.judge(judge, "42", 42)).passed


async def test_this_process_is_not_touched(bench):
    judge = verifier(careless)
    text = "__import__('os').environ.update(QUINTAIN_POISON='1') or 42"
    assert (await bench.judge(judge, text, 42)).passed
    assert "QUINTAIN_POISON" not in os.environ
