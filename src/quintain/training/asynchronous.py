"""The asynchronous loop: rollouts go on while the learner learns.

Two coroutines share a buffer: one starts groups as the pacing allows, the other takes a step's
groups as soon as they are ready. Old tokens are bounded where they are trained; see `buffer`. At
the end no more groups are started than are still needed; when anything fails, running rollouts are
cancelled, and what had finished is in the store.
"""

from __future__ import annotations

import asyncio
import time

from quintain.store import GroupRow
from quintain.training.buffer import Buffer
from quintain.training.trainer import StepClock, Trainer, one_error
from quintain.trajectory import Trajectory


async def train_asynchronously(trainer: Trainer) -> None:
    """Trains all of the run's steps, rollouts and learner overlapping."""
    config = trainer.config
    buffer = Buffer(
        groups_per_step=config.groups_per_step,
        group_size=config.group_size,
        max_staleness=config.max_staleness,
        refills=config.refills,
        steps_left=config.steps - trainer.step,
        version=trainer.version,
    )
    changed = asyncio.Condition()

    async def play(row: GroupRow) -> None:
        async def finished(place: int, trajectory: Trajectory) -> None:
            async with changed:
                buffer.put(row.id, place, trajectory)
                changed.notify_all()

        await trainer.play(row, finished)

    async def start_groups(tasks: asyncio.TaskGroup) -> None:
        while True:
            async with changed:
                await changed.wait_for(lambda: buffer.may_start or not buffer.steps_left)
                if not buffer.steps_left:
                    return
                row = await trainer.admit()
                buffer.start(row.id, trainer.partial.get(row.id, ()))
            tasks.create_task(play(row))

    async def learn() -> None:
        while buffer.steps_left:
            clock = StepClock()
            async with changed:
                await changed.wait_for(lambda: buffer.full)
                groups, filtered = buffer.take()
                partial = buffer.partial
                changed.notify_all()
            clock.wait_rollouts_s = time.monotonic() - clock.began
            await trainer.learn(groups, filtered, clock, partial)
            async with changed:
                buffer.trained(trainer.version)
                changed.notify_all()

    async with one_error(), asyncio.TaskGroup() as tasks:
        tasks.create_task(start_groups(tasks))
        tasks.create_task(learn())
