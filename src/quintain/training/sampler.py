"""Which task comes next: a pure function of a counter, so that a resumed run goes on alike.

The pool is gone through in an order drawn anew for each pass, every task once a pass.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

import numpy as np

from quintain.errors import TrainingError
from quintain.protocols import TaskSource
from quintain.record import derive_seed
from quintain.task import Split, Task


class TaskSampler(Protocol):
    """Chooses training tasks."""

    def draw(self, count: int) -> Task:
        """The task of the draw number `count`, from 0: equal numbers give equal tasks."""
        ...


class Uniform:
    """Every task of the pool once a pass, in a fresh order.

    Args:
        source: only its `train` split is read.
        seed: of the orders.
        pool: tasks that are kept, the first ones of the source, which may be endless.

    Raises:
        TrainingError: the source hands out a task of another split, or none.
    """

    def __init__(self, source: TaskSource, seed: int, pool: int) -> None:
        self.tasks = list(islice(source.split(Split.TRAIN), pool))
        self.seed = seed
        for task in self.tasks:
            refuse_unless_train(task)
        if not self.tasks:
            raise TrainingError(
                "there is no task of split 'train' to train on; give tasks split='train', or no "
                "split, and 80 % of them get it"
            )
        self._order: tuple[int, list[int]] = (-1, [])

    def draw(self, count: int) -> Task:
        """The task of the draw number `count`."""
        turn, place = divmod(count, len(self.tasks))
        if self._order[0] != turn:
            generator = np.random.default_rng(derive_seed(self.seed, "order", turn))
            self._order = (turn, [int(i) for i in generator.permutation(len(self.tasks))])
        return self.tasks[self._order[1][place]]


def refuse_unless_train(task: Task) -> None:
    """Lets only tasks of the split `train` pass.

    Raises:
        TrainingError: it is of another split.
    """
    if task.split != Split.TRAIN:
        raise TrainingError(
            f"refusing to train on task {task.id!r}: its split is {str(task.split)!r}, "
            "and eval and heldout tasks are for measuring only"
        )
