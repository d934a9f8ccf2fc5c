"""Arithmetic in one turn, judged by comparing numbers.

::

    user       What is 12 + 30? End with: The answer is <number>
    assistant  The answer is 42

The fastest environment there is: no tool, no sandbox. What rollouts cost shows here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from quintain import registry
from quintain.envs.environment import Environment, Script
from quintain.envs.tasks import Generated
from quintain.errors import ConfigError
from quintain.messages import Message, Sampling, assistant
from quintain.record import derive_seed
from quintain.task import Limits, Split, Task


def environment(
    seed: int = 0, eval: int = 200, heldout: int = 200, largest: int = 99, operations: str = "+-*"
) -> Environment:
    """Arithmetic in one turn, judged by comparing numbers.

    Args:
        seed: of the tasks.
        eval: tasks in the eval split.
        heldout: tasks in the held-out split.
        largest: of the operands, from 0 on.
        operations: any of `+-*`.
    """
    if largest < 1 or not operations or set(operations) - set("+-*"):
        raise ConfigError(f"largest >= 1 and operations of +-*, got {largest}, {operations!r}")

    def make(rng: random.Random, number: int) -> dict[str, Any]:
        left, right = rng.randint(0, largest), rng.randint(0, largest)
        sign = rng.choice(operations)
        value = left + right if sign == "+" else left - right if sign == "-" else left * right
        same = [left, right] if sign == "-" else sorted((left, right))
        return {
            "prompt": f"What is {left} {sign} {right}? End with: The answer is <number>",
            "answer": str(value),
            "content": [sign, *same],
            "source": "generated",
        }

    def demonstrations(n: int, seed: int = 0) -> list[list[Message]]:
        start = derive_seed(seed, "demonstrations")
        found = Generated(make, name="arithmetic", seed=start, train=n).split(Split.TRAIN)
        return [[*task.prompt, *_oracle(task)] for task in found]

    return Environment(
        tasks=Generated(make, name="arithmetic", seed=seed, eval=eval, heldout=heldout),
        verifier=registry.verifiers.get("answer")(kind="number"),
        name="arithmetic",
        limits=Limits(max_steps=1),
        sampling=Sampling(max_tokens=64),
        oracle=_oracle,
        fakes=_fakes,
        demonstrations=demonstrations,
    )


def _oracle(task: Task) -> tuple[Message, ...]:
    return (assistant(f"The answer is {task.answer}"),)


def _fakes(task: Task) -> Sequence[Script]:
    wrong = int(task.answer) + 1
    return (
        (assistant(f"The answer is {wrong}"),),
        (assistant("The answer is"),),
        (assistant(task.prompt[-1].text),),
    )
