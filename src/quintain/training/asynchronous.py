"""The asynchronous loop: rollouts go on while the learner learns.

Two coroutines share a buffer: one starts groups as the pacing allows, the other takes a step's
groups as soon as they are ready. Old tokens are bounded where they are trained, members that cannot
be of use any more are dropped; see `buffer`. Evaluations go on beside, each with a policy of its
own version; see `evaluations`. At the end no more groups are started than are still needed; when
anything fails, running rollouts are cancelled, and what had finished is in the store.
"""

from __future__ import annotations

import asyncio

from quintain.store import GroupRow
from quintain.training.buffer import Buffer
from quintain.training.counts import cancelled
from quintain.training.trainer import Trainer, one_error
from quintain.trajectory import Trajectory


async def train_asynchronously(trainer: Trainer) -> None:
    """Trains all of the run's steps, rollouts and learner overlapping."""
    await _Loop(trainer).run()


class _Loop:
    """One run of it."""

    def __init__(self, trainer: Trainer) -> None:
        config = trainer.config
        self.trainer = trainer
        self.buffer = Buffer(
            groups_per_step=config.groups_per_step,
            group_size=config.group_size,
            max_staleness=config.max_staleness,
            refills=config.refills,
            steps_left=config.steps - trainer.step,
            version=trainer.version,
        )
        self.changed = asyncio.Condition()
        self.members: dict[tuple[str, int], tuple[int, int]] = {}
        """Ticket and place of each sample that is played."""

    async def run(self) -> None:
        """To the last step."""
        self.trainer.evaluations.beside = True
        async with one_error(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._start_groups(tasks))
            tasks.create_task(self._learn())

    async def _start_groups(self, tasks: asyncio.TaskGroup) -> None:
        buffer = self.buffer
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: buffer.may_start or not buffer.steps_left)
                if not buffer.steps_left:
                    return
                row = await self.trainer.admit()
                buffer.start(row.id, self.trainer.partial.get(row.id, ()))
            tasks.create_task(self._play(row))

    async def _play(self, row: GroupRow) -> None:
        async def finished(place: int, trajectory: Trajectory) -> None:
            async with self.changed:
                del self.members[row.task_id, row.sample_indexes[place]]
                if row.id in self.buffer.open:
                    self.buffer.put(row.id, place, trajectory)
                self.changed.notify_all()

        for place, index in enumerate(row.sample_indexes):
            self.members[row.task_id, index] = (row.id, place)
        await self.trainer.play(row, finished)

    async def _learn(self) -> None:
        buffer, trainer = self.buffer, self.trainer
        while buffer.steps_left:
            await trainer.faults.going.wait()
            async with self.changed:
                await self.changed.wait_for(lambda: buffer.full)
                groups, filtered = buffer.take()
                dropped = self._drop_hopeless()
                closed, buffer.closed = buffer.closed, []
                partial = buffer.partial
                self.changed.notify_all()
            await trainer.learn(groups, filtered, partial, closed, dropped)
            async with self.changed:
                buffer.trained(trainer.version)
                self.changed.notify_all()

    def _drop_hopeless(self) -> dict[str, float]:
        """Cancels the members that cannot be of use any more; counts them by duration."""
        timeline = self.trainer.timeline
        judged = {
            self.members[key]: timeline.newest[key]
            for key, stage in timeline.stages.items()
            if stage == "verifier" and key in self.members and key in timeline.newest
        }
        durations: list[float] = []
        for ticket, place in self.buffer.hopeless(judged):
            playing = self.trainer.playing.get(ticket)
            if playing is not None and playing.drop(place):
                key = next(key for key, who in self.members.items() if who == (ticket, place))
                durations.append(timeline.age_s(key))
                self.buffer.drop(ticket, place)
                del self.members[key]
        return cancelled(durations)
