"""The synchronous loop: play P groups, learn, hand the weights over, repeat.

Every token is sampled by the weights that are then trained, and a step's batch is in the order in
which its groups were admitted, never in the order in which they finished: for a seed and a thread
count on a CPU, a run can be repeated bit for bit.
"""

from __future__ import annotations

import asyncio
import time

from quintain.training.groups import Group
from quintain.training.trainer import StepClock, Trainer, one_error


async def train_synchronously(trainer: Trainer, *, until: int | None = None) -> None:
    """Trains up to step `until` (None: all of the run's steps), one thing after the other."""
    last = trainer.config.steps if until is None else min(until, trainer.config.steps)
    while trainer.step < last:
        clock = StepClock()
        groups, filtered = await collect(trainer)
        clock.wait_rollouts_s = time.monotonic() - clock.began
        await trainer.learn(groups, filtered, clock)


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
        async with one_error(), asyncio.TaskGroup() as tasks:
            playing = [tasks.create_task(trainer.play(row)) for row in rows]
        for task in playing:
            group = task.result()
            (loud if group.signal else quiet).append(group)
        missing = min(wanted - len(loud), refills)
        refills -= missing
    # The latest quiet ones fill the step up, as those that nothing replaced.
    fill = wanted - len(loud)
    filtered, rest = quiet[: len(quiet) - fill], quiet[len(quiet) - fill :]
    return sorted([*loud, *rest], key=lambda group: group.ticket), filtered
