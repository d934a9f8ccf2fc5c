"""Small Python programming tasks, judged by hidden tests in a sandbox of the judge's own.

A prompt names the function, says what it returns and gives one example::

    Write a Python function `digit_sum(n)` that returns 3 times the sum of the digits of …
    Example: digit_sum(255) == 6
    Answer with one Python code block.

The hidden cases (edge cases and random ones, the example not among them) are made by a reference
solution that no sandbox ever holds. One turn; the code is what stands in the answer's code block.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from quintain import registry
from quintain.envs.environment import Environment, Script
from quintain.envs.python_problems import Problem, cases_of, draw_problem
from quintain.envs.tasks import Generated
from quintain.errors import ConfigError
from quintain.messages import Message, Sampling, assistant
from quintain.record import derive_seed
from quintain.task import Limits, Split, Task


def environment(
    seed: int = 0, train: int = 2000, eval: int = 100, heldout: int = 100, cases: int = 12
) -> Environment:
    """Small Python programming tasks, judged by hidden tests.

    Args:
        seed: of the tasks.
        train: tasks in the train split; there are about ten thousand different ones.
        eval: tasks in the eval split.
        heldout: tasks in the held-out split.
        cases: hidden tests of each task, at least 8.
    """
    if cases < 8:
        raise ConfigError(f"fewer than 8 hidden tests prove little, got cases={cases}")
    make = _maker(cases)
    tasks = Generated(make, name="python", seed=seed, train=train, eval=eval, heldout=heldout)

    def oracle(task: Task) -> Script:
        return (_code(draw_problem(tasks.generator(task.id)).source),)

    def fakes(task: Task) -> Sequence[Script]:
        return _fakes(draw_problem(tasks.generator(task.id)), task)

    def demonstrations(n: int, seed: int = 0) -> list[list[Message]]:
        start = derive_seed(seed, "demonstrations")
        source = Generated(make, name="python", seed=start, train=n)
        return [
            [*task.prompt, _code(draw_problem(source.generator(task.id)).source)]
            for task in source.split(Split.TRAIN)
        ]

    return Environment(
        tasks=tasks,
        verifier=registry.verifiers.get("tests")(),
        name="python",
        limits=Limits(max_steps=1),
        sampling=Sampling(max_tokens=512),
        oracle=oracle,
        fakes=fakes,
        demonstrations=demonstrations,
    )


def _maker(cases: int) -> Any:
    def make(rng: random.Random, number: int) -> dict[str, Any]:
        problem = draw_problem(rng)
        seed = rng.getrandbits(64)
        return {
            "prompt": lambda: _statement(problem, random.Random(seed)),
            "answer": lambda: _hidden(problem, random.Random(seed), cases),
            # The example is not what makes a problem a different one.
            "content": [problem.name, problem.does],
            "metadata": {"template": problem.name},
            "source": "generated",
        }

    return make


def _statement(problem: Problem, rng: random.Random) -> str:
    example = problem.draw(rng)
    value = problem.reference()(*example)
    return (
        f"Write a Python function `{problem.name}({problem.parameters})` that {problem.does}.\n"
        f"Example: {problem.name}({', '.join(map(repr, example))}) == {value!r}\n"
        "Answer with one Python code block."
    )


def _hidden(problem: Problem, rng: random.Random, cases: int) -> dict[str, Any]:
    """The hidden cases, the example not among them: `rng` begins where `_statement`'s began."""
    example = problem.draw(rng)
    found = cases_of(problem, rng, cases + 1)
    return {
        "entry_point": problem.name,
        "cases": [
            {"input": arguments, "expected": expected}
            for arguments, expected in found
            if arguments != example
        ][:cases],
    }


def _code(source: str) -> Message:
    return assistant(f"```python\n{source}```")


def _fakes(problem: Problem, task: Task) -> Sequence[Script]:
    """A wrong constant, an echo, a table of nothing, an object that equals everything."""
    head = f"def {problem.name}({problem.parameters}):\n"
    expected = task.answer["cases"][-1]["expected"]
    return (
        (_code(f"{head}    pass\n"),),
        (_code(f"{head}    return {expected!r}\n"),),
        (_code(f"{head}    return {problem.parameters}\n"),),
        (
            _code(
                "class Same:\n    def __eq__(self, other):\n        return True\n"
                f"{head}    return Same()\n"
            ),
        ),
        (_code("print('all tests passed')\nraise SystemExit(0)\n"),),
    )
