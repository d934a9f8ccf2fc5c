"""One rollout for a look: what comes of one task under one policy, judged, kept nowhere."""

from __future__ import annotations

from typing import Any

from quintain.protocols import Environment, Policy
from quintain.rollouts.blocking import run_blocking
from quintain.rollouts.host import Host, Job
from quintain.rollouts.schedule import rollout as run_job
from quintain.task import Split, Task
from quintain.trajectory import Trajectory


async def arollout(
    environment: Environment,
    policy: Policy,
    task: Task | str | None = None,
    *,
    sample_index: int = 0,
    purpose: str = "trial",
    seed: int = 0,
    **host: Any,
) -> Trajectory:
    """Plays and judges one sample of one task.

    Args:
        environment: where the task comes from.
        policy: who plays.
        task: a task, a task's id, or None: the first task of the first split that has one.
        sample_index: which sample; seeds follow from it.
        purpose: seeds follow from it, too; "train" or an eval's id replays one of those.
        seed: of the run.
        host: further settings of `Host` (sampling, limits, backend, retries, store, …).

    Raises:
        TaskError: there is no such task.
    """
    if isinstance(task, str):
        task = environment.tasks.get(task)
    if task is None:
        task = next(found for split in Split for found in environment.tasks.split(split))
    async with Host(environment, policy, run_seed=seed, **host) as surroundings:
        return await run_job(
            Job(task=task, purpose=purpose, sample_index=sample_index), surroundings
        )


def rollout(
    environment: Environment,
    policy: Policy,
    task: Task | str | None = None,
    *,
    sample_index: int = 0,
    purpose: str = "trial",
    seed: int = 0,
    **host: Any,
) -> Trajectory:
    """The same as `arollout`, for synchronous code and notebooks."""
    return run_blocking(
        arollout(
            environment,
            policy,
            task,
            sample_index=sample_index,
            purpose=purpose,
            seed=seed,
            **host,
        )
    )
