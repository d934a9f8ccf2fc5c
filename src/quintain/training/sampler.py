"""Which task comes next: a function of a counter and of what is known so far.

A sampler draws by number, from a seed; nothing that it draws changes it. What changes it are the
rewards of groups when they are trained, in the order in which they are trained, and that is saved
with every checkpoint: a resumed run goes on as one that was never stopped.

::

    uniform      every task once a pass
    band         the same, leaving out what is too easy or too hard just now
    curriculum   mostly tasks near a pass rate, so that tasks get harder as the policy gets better

A group whose rewards are all equal teaches nothing, and a task with pass rate p gives such a group
with probability p^G + (1 − p)^G. Both adaptive samplers spend rollouts where that is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from quintain.errors import ConfigError, TrainingError
from quintain.protocols import TaskSource
from quintain.record import Json, derive_seed
from quintain.registry import samplers
from quintain.task import Split, Task

Rng = np.random.Generator


class TaskSampler(Protocol):
    """Chooses training tasks."""

    def draw(self, count: int) -> Task:
        """The task of the draw number `count`, from 0; changes nothing."""
        ...

    def seen(self, task_id: str, rewards: Sequence[float]) -> None:
        """Samples of a task are trained, or left out because their rewards were equal."""
        ...

    def state(self) -> Json:
        """What `seen` has made of it, as JSON."""
        ...

    def restore(self, state: Json) -> None:
        """Goes on from a state."""
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
        return self.tasks[self._place(count)]

    def _place(self, count: int) -> int:
        turn, place = divmod(count, len(self.tasks))
        if self._order[0] != turn:
            generator = np.random.default_rng(derive_seed(self.seed, "order", turn))
            self._order = (turn, [int(i) for i in generator.permutation(len(self.tasks))])
        return self._order[1][place]

    def seen(self, task_id: str, rewards: Sequence[float]) -> None:
        """Changes nothing."""

    def state(self) -> Json:
        """Nothing."""
        return {}

    def restore(self, state: Json) -> None:
        """Nothing."""


class Rated(Uniform):
    """What the adaptive samplers share: a pass rate for every task that was seen.

    A rate is the mean reward, older samples weighing half as much with every further group: it
    follows the policy.

    Args:
        source: see `Uniform`.
        seed: see `Uniform`.
        pool: see `Uniform`.
        explore: share of draws that take any task, so that what was too hard once is tried again.
    """

    FADE = 0.5

    def __init__(self, source: TaskSource, seed: int, pool: int, *, explore: float = 0.1) -> None:
        super().__init__(source, seed, pool)
        if not 0 < explore <= 1:
            raise ConfigError(f"sampler: explore is above 0 and at most 1, got {explore}")
        self.explore = explore
        self._places = {task.id: place for place, task in enumerate(self.tasks)}
        self._known = np.zeros((2, len(self.tasks)))
        """Faded number of samples and sum of rewards, by place."""

    def seen(self, task_id: str, rewards: Sequence[float]) -> None:
        """Takes the rewards into the task's rate."""
        place = self._places.get(task_id)
        if place is not None and rewards:
            self._known[:, place] *= self.FADE
            self._known[:, place] += len(rewards), sum(rewards)

    def rates(self, *, prior: float = 0.0) -> np.ndarray:
        """The pass rate of each task of the pool; NaN for unseen ones, unless there is a prior.

        Args:
            prior: samples of reward ½ that are added to each task's.
        """
        count, total = self._known
        with np.errstate(invalid="ignore"):
            return np.asarray((total + prior / 2) / (count + prior))

    def _random(self, count: int) -> Rng:
        return np.random.default_rng(derive_seed(self.seed, "draw", count))

    def state(self) -> Json:
        """Counts of the tasks seen, by id."""
        return {
            task.id: [float(number) for number in self._known[:, place]]
            for place, task in enumerate(self.tasks)
            if self._known[0, place] > 0
        }

    def restore(self, state: Json) -> None:
        """Goes on from a state; tasks that are no longer in the pool are forgotten."""
        self._known[:] = 0
        for task_id, known in state.items():
            if task_id in self._places:
                self._known[:, self._places[task_id]] = known


class Band(Rated):
    """Tasks whose pass rate lies in a band, and those never seen; the order is that of `Uniform`.

    Online difficulty filtering, as in Bae et al. 2025, arXiv:2504.03380.

    Args:
        source: see `Uniform`.
        seed: see `Uniform`.
        pool: see `Uniform`.
        low: of the band.
        high: of the band.
        explore: see `Rated`.
    """

    def __init__(
        self,
        source: TaskSource,
        seed: int,
        pool: int,
        *,
        low: float = 0.1,
        high: float = 0.9,
        explore: float = 0.1,
    ) -> None:
        super().__init__(source, seed, pool, explore=explore)
        if not 0 <= low < high <= 1:
            raise ConfigError(f"sampler: the band needs 0 <= low < high <= 1, got {low} to {high}")
        self.low, self.high = low, high

    def draw(self, count: int) -> Task:
        """The next task of the pass when it is in the band, else one that is."""
        place = self._place(count)
        rates = self.rates()
        inside = np.isnan(rates) | ((rates >= self.low) & (rates <= self.high))
        random = self._random(count)
        if not (inside[place] or random.random() < self.explore) and inside.any():
            place = int(random.choice(np.flatnonzero(inside)))
        return self.tasks[place]


class Curriculum(Rated):
    """Draws tasks with a weight that is largest at a target pass rate.

    With p the pass rate, t the target and s the sharpness,
    w = ((p/t)^t · ((1 − p)/(1 − t))^(1 − t))^s. The defaults give 4·p·(1 − p), the learnability of
    Rutherford et al. 2024 (arXiv:2408.15099) and Foster and Foerster 2025 (arXiv:2502.12272). As
    the policy improves, easy tasks lose their weight and harder ones gain it.

    Args:
        source: see `Uniform`.
        seed: see `Uniform`.
        pool: see `Uniform`.
        target: the pass rate with the largest weight; above ½ the tasks stay easier.
        sharpness: larger: closer to the target.
        explore: see `Rated`.
    """

    def __init__(
        self,
        source: TaskSource,
        seed: int,
        pool: int,
        *,
        target: float = 0.5,
        sharpness: float = 2.0,
        explore: float = 0.1,
    ) -> None:
        super().__init__(source, seed, pool, explore=explore)
        if not 0 < target < 1 or sharpness <= 0:
            raise ConfigError(
                "sampler: the curriculum needs a target between 0 and 1 and a sharpness above 0, "
                f"got {target} and {sharpness}"
            )
        self.target, self.sharpness = target, sharpness

    def weights(self) -> np.ndarray:
        """The weight of each task of the pool, at most 1; unseen ones count as half solved."""
        rates, t = self.rates(prior=1.0), self.target
        weights = (rates / t) ** t * ((1 - rates) / (1 - t)) ** (1 - t)
        return np.asarray(weights**self.sharpness)

    def draw(self, count: int) -> Task:
        """A task by weight, or with probability `explore` the next one of the pass."""
        random = self._random(count)
        if random.random() < self.explore:
            return self.tasks[self._place(count)]
        sums = self.weights().cumsum()
        place = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
        return self.tasks[min(place, len(sums) - 1)]


def make_sampler(
    name: str, source: TaskSource, seed: int, pool: int, options: Mapping[str, Any]
) -> TaskSampler:
    """The sampler of that name in the registry table `samplers`.

    Args:
        name: a row, or `"my.module:Class"`; called with source, seed, pool and the options.
        source: of tasks.
        seed: of the draws.
        pool: tasks that are drawn from, at most.
        options: of the sampler.

    Raises:
        RegistryError: there is none of that name.
        ConfigError: an option is unknown or wrong.
    """
    factory = samplers.get(name)
    try:
        made: TaskSampler = factory(source, seed, pool, **options)
    except TypeError as error:
        raise ConfigError(f"sampler {name!r} with {dict(options)}: {error}") from error
    return made


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
