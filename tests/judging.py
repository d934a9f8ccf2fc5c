"""A judge's surroundings, with real workers and real sandboxes."""

import asyncio
import time

import pytest

from quintain import registry
from quintain.messages import assistant, user
from quintain.protocols import JudgeContext
from quintain.task import Task
from quintain.trajectory import Action, Observation, Step, StopReason, Trajectory
from quintain.verifiers.tests import Tests
from quintain.verifiers.workers import WorkerPool


def trajectory_of(text, task_id="t"):
    steps = (Step(action=Action(message=assistant(text)), observation=Observation()),)
    return Trajectory(
        environment="test",
        task_id=task_id,
        policy="scripted",
        purpose="test",
        opening=Observation(messages=(user("question"),)),
        steps=steps,
        stop=StopReason.DONE,
    )


class Bench:
    """Opens what a verifier needs; `judge(verifier, text, answer)` gives the verdict."""

    def __init__(self):
        self.workers = WorkerPool(4)
        self.backend = None

    async def open_sandbox(self, spec):
        if self.backend is None:
            self.backend = registry.sandboxes.get("native")()
            probe = await self.backend.probe()
            if not probe.available:
                pytest.skip(f"no native sandbox here: {probe.advice}")
        return await self.backend.open(spec)

    def context(self, text="", answer=None, *, task=None, sandbox=None, deadline_s=120.0, **fields):
        task = task or Task(id="t", prompt="question", answer=answer, **fields)
        return JudgeContext(
            task=task,
            trajectory=trajectory_of(text, task.id),
            sandbox=sandbox,
            open_sandbox=self.open_sandbox,
            workers=self.workers,
            deadline=time.monotonic() + deadline_s,
        )

    async def judge(self, verifier, text="", answer=None, **options):
        return await verifier.judge(self.context(text, answer, **options))

    async def close(self):
        await self.workers.close()
        if self.backend is not None:
            await self.backend.close()


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    await made.close()


SQUARE = {"entry_point": "f", "cases": [{"input": [n], "expected": n * n} for n in range(12)]}
DOUBLE = {"cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in range(1, 7)]}


def fenced(code):
    return f"```python\n{code}\n```\n"


async def judge_code(bench, code, answer=SQUARE, **limits):
    limits = {"cpu_s": 3, "wall_s": 20, **limits}
    return await Tests(**limits).judge(bench.context(fenced(code), answer, deadline_s=400))


async def outcomes(bench, variants, answer=SQUARE, **limits):
    """Name of each variant to its outcome; four at once."""
    gate = asyncio.Semaphore(4)

    async def judge(code):
        async with gate:
            return (await judge_code(bench, code, answer, **limits)).outcome.value

    found = await asyncio.gather(*map(judge, variants.values()))
    return dict(zip(variants, found, strict=True))


def all_of(variants, outcome):
    return dict.fromkeys(variants, outcome)
