"""Learnability: how often a policy solves the tasks; at 0 and at 1 there is nothing to learn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.protocols import Environment, Policy
from quintain.rollouts import Host, Job, rollout
from quintain.statistics import Interval, wilson
from quintain.task import Task
from quintain.verdict import Outcome

CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class Learnability:
    """What a policy earned."""

    policy: str
    by_task: Mapping[str, tuple[int, int]]
    """Task to (solved, judged)."""
    faults: int

    @property
    def rate(self) -> Interval:
        """Share of judged samples that were solved, Wilson's interval."""
        counts = list(self.by_task.values())
        return wilson(sum(solved for solved, _ in counts), sum(judged for _, judged in counts))

    @property
    def mixed(self) -> int:
        """Tasks that were solved in some samples and not in others: what groups learn from."""
        return sum(0 < solved < judged for solved, judged in self.by_task.values())

    @property
    def learnable(self) -> bool:
        """Whether the rate is neither 0 nor 1."""
        return 0.0 < self.rate.value < 1.0

    def __str__(self) -> str:
        tasks = f"{self.mixed} of {len(self.by_task)} tasks are solved sometimes"
        return f"{self.policy} solves {self.rate}; {tasks}"


async def learnability(
    environment: Environment,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    samples: int,
    host: Mapping[str, Any],
    seed: int = 0,
) -> Learnability:
    """Rolls a policy out and counts.

    Args:
        environment: under audit.
        policy: to be tried.
        tasks: each of them.
        samples: rollouts of each task.
        host: further settings of `Host`.
        seed: of the run.
    """
    counts = {task.id: [0, 0] for task in tasks}
    faults = 0
    waiting = iter([Job(t, "audit:policy", n) for n in range(samples) for t in tasks])
    async with Host(environment, policy, run_seed=seed, **host) as surroundings:

        async def worker() -> None:
            nonlocal faults
            for job in waiting:
                outcome = (await rollout(job, surroundings)).outcome
                if outcome is None or not outcome.judged:
                    faults += 1
                    continue
                counts[job.task.id][0] += outcome is Outcome.SOLVED
                counts[job.task.id][1] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(worker())
    return Learnability(policy.name, {k: (s, n) for k, (s, n) in counts.items()}, faults)
