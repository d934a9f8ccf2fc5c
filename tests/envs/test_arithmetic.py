"""The arithmetic environment, and options that built-in environments refuse."""

import re

import pytest

import quintain as q
from quintain.envs import arithmetic, calculator, python
from quintain.errors import ConfigError
from quintain.policies.scripted import Scripted


def test_every_answer_is_right():
    env = arithmetic.environment(eval=100, heldout=100)
    for split in ("eval", "heldout"):
        for task in env.tasks.split(split):
            left, sign, right = re.match(
                r"What is (\d+) ([-+*]) (\d+)\?", task.prompt[0].text
            ).groups()
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign]
            assert task.answer == str(value(int(left), int(right)))


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("The answer is {}", 1.0),
        ("2 + 2 = 4, so the answer is {}.", 1.0),
        ("The answer is {}0", 0.0),
        ("The answer is 1 or {}", 0.0),
        ("", 0.0),
    ],
)
async def test_what_counts_as_the_answer(said, reward):
    env = arithmetic.environment(eval=20, heldout=20)
    task = next(t for t in env.tasks.split("eval") if int(t.answer) > 9)
    done = await q.arollout(env, Scripted(said.format(task.answer)), task)
    assert done.error is None
    assert done.reward == reward


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (arithmetic.environment, {"operations": "/"}, "operations"),
        (arithmetic.environment, {"largest": 0}, "largest"),
        (calculator.environment, {"shots": 3}, "shots is 0 to 2 for calculator, got 3"),
        (calculator.hard, {"shots": -1}, "shots is 0 to 3 for calculator-hard, got -1"),
        (calculator.environment, {"smallest": 1000}, "smallest is at most largest"),
        (python.environment, {"cases": 3}, "fewer than 8 hidden tests"),
        (python.environment, {"eval": -1}, "size of the eval split"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)
