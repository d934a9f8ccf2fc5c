"""The synchronous loop: play P groups, learn, hand the weights over, repeat.

Every token is sampled by the weights that are then trained, and a step's batch is in the order in
which its groups were admitted, never in the order in which they finished. Where the policy can
(`InStep`), its own batches form by turn and order too: for a seed and a thread count on a CPU, a
run can be repeated bit for bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quintain.rollouts.host import Job
from quintain.store import GroupRow
from quintain.training.contracts import InStep, Step
from quintain.training.groups import Group
from quintain.training.trainer import Trainer, one_error
from quintain.trajectory import Trajectory


async def train_synchronously(trainer: Trainer, *, until: int | None = None) -> None:
    """Trains up to step `until` (None: all of the run's steps), one thing after the other."""
    last = trainer.config.steps if until is None else min(until, trainer.config.steps)
    while trainer.step < last:
        groups, filtered = await collect(trainer)
        await trainer.learn(groups, filtered)
        await trainer.noted()


async def collect(trainer: Trainer) -> tuple[list[Group], list[Group]]:
    """Plays the groups of one step.

    A group whose rewards are all equal is replaced by a new draw while refills are left.

    Returns:
        The `groups_per_step` groups to train on, and those that were replaced.
    """
    wanted = trainer.config.groups_per_step
    refills = trainer.config.refills
    loud: list[Group] = []
    quiet: list[Group] = []
    missing = wanted
    while missing:
        rows = [await trainer.admit() for _ in range(missing)]
        for group in await play_all(trainer, rows):
            (loud if group.signal else quiet).append(group)
        missing = min(wanted - len(loud), refills)
        refills -= missing
    # The latest quiet ones fill the step up, as those that nothing replaced.
    fill = wanted - len(loud)
    filtered, rest = quiet[: len(quiet) - fill], quiet[len(quiet) - fill :]
    return sorted([*loud, *rest], key=lambda group: group.ticket), filtered


async def play_all(trainer: Trainer, rows: Sequence[GroupRow]) -> list[Group]:
    """Plays the groups, in step where the policy can and all their members may run at once."""
    policy = trainer.policy
    at_once = trainer.config.max_concurrent_rollouts // trainer.config.group_size
    if not (trainer.config.repeatable and isinstance(policy, InStep) and at_once):
        return await _play(trainer, rows, None)
    groups: list[Group] = []
    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        sessions = [session for row in some for session in trainer.sessions_of(row)]
        async with policy.lockstep(sessions) as step:
            with _retries_leave(trainer, some, sessions, step):
                groups.extend(await _play(trainer, some, step))
    return groups


@contextmanager
def _retries_leave(
    trainer: Trainer, rows: Sequence[GroupRow], sessions: Sequence[str], step: Step
) -> Iterator[None]:
    """An attempt that the host spoiled makes no more calls: nobody is to wait for it."""
    members = ((row.task_id, index) for row in rows for index in row.sample_indexes)
    session_of = dict(zip(members, sessions, strict=True))

    def left(job: Job) -> None:
        session = session_of.get((job.task.id, job.sample_index))
        if session is not None:
            step.done(session)

    trainer.timeline.on_retry = left
    try:
        yield
    finally:
        trainer.timeline.on_retry = None


async def _play(trainer: Trainer, rows: Sequence[GroupRow], step: Step | None) -> list[Group]:
    async def one(row: GroupRow) -> Group:
        sessions = trainer.sessions_of(row) if step is not None else []

        async def finished(place: int, trajectory: Trajectory) -> None:
            if step is not None:
                step.done(sessions[place])

        return await trainer.play(row, finished)

    async with one_error(), asyncio.TaskGroup() as tasks:
        playing = [tasks.create_task(one(row)) for row in rows]
    return [task.result() for task in playing]
