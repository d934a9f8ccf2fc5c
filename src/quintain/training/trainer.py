"""What both training loops share: admit a group, play it, learn from some, checkpoint, resume.

The run's store is the only memory: groups are rows with a number, fixed sample indexes and the step
that consumed them. A resumed run restores the last checkpoint, forgets what was consumed after it,
and finds the finished trajectories of those groups in the store: they are trained, not sampled
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from quintain.batch import Batch
from quintain.errors import TrainingError
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Metrics, Published
from quintain.rollouts.host import Host, Job
from quintain.rollouts.schedule import rollout_group
from quintain.store import GroupRow, Store
from quintain.task import Task
from quintain.training.advantages import estimator
from quintain.training.batching import Packing, pack
from quintain.training.config import TrainConfig
from quintain.training.faults import FaultWatch
from quintain.training.groups import Group, rewards_of
from quintain.training.sampler import TaskSampler, refuse_unless_train
from quintain.trajectory import TRAIN, Trajectory
from quintain.verdict import Outcome

logger = logging.getLogger(__name__)
KEEP_OPTIMISERS = 2
"""Checkpoints that one can resume from; older ones keep their weights only."""


class AsyncLearner(Protocol):
    """A learner behind an async client; see `learner_process`."""

    async def update(self, batch: Batch) -> Metrics:
        """One optimiser step."""
        ...

    async def publish(self) -> Published:
        """Writes the weights under the next version."""
        ...

    async def current(self) -> Published:
        """Writes the weights under their version."""
        ...

    async def save(self, folder: Path) -> Published:
        """Writes a checkpoint."""
        ...

    async def restore(self, folder: Path) -> Published:
        """Goes on from a checkpoint."""
        ...


@runtime_checkable
class TrainedPolicy(Protocol):
    """A policy that takes new weights."""

    version: int
    spec: ModelSpec

    async def update(self, published: Published) -> None:
        """Samples with these weights from now on."""
        ...


class Step(Protocol):
    """Sessions whose calls go to the sampler together."""

    def done(self, session: str) -> None:
        """The session makes no more calls."""
        ...


@runtime_checkable
class InStep(Protocol):
    """A policy that can form its batches by turn and order in place of arrival."""

    def lockstep(self, sessions: Sequence[str]) -> AbstractAsyncContextManager[Step]:
        """While open, a call of these sessions waits until each that still plays has made one."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights on disk that belong to a step."""

    step: int
    published: Published

    @property
    def version(self) -> int:
        """The policy version."""
        return self.published.version


OnMember = Callable[[int, Trajectory], Awaitable[None]]
OnCheckpoint = Callable[[Checkpoint], Awaitable[None]]
"""Called at step 0, at every evaluation step and at the end, with the policy at that version.

It is awaited before the policy gets newer weights, and again for the same checkpoint when a run is
resumed there: it must not repeat what is stored.
"""


@dataclass(slots=True)
class StepClock:
    """Where the wall-clock time of one step went, in seconds."""

    began: float = field(default_factory=time.monotonic)
    wait_rollouts_s: float = 0.0
    sync_s: float = 0.0


class Trainer:
    """The state of one training run.

    Args:
        config: settings.
        host: environment, policy, store, …; its policy is the one that is trained.
        policy: takes the new weights.
        learner: makes them.
        tasks: which task comes next.
        store: the run.
        on_checkpoint: see `OnCheckpoint`.
    """

    def __init__(
        self,
        config: TrainConfig,
        host: Host,
        policy: TrainedPolicy,
        learner: AsyncLearner,
        tasks: TaskSampler,
        store: Store,
        on_checkpoint: OnCheckpoint | None = None,
    ) -> None:
        self.config = config
        self.host = host
        self.policy = policy
        self.learner = learner
        self.tasks = tasks
        self.store = store
        self.on_checkpoint = on_checkpoint
        algorithm = config.resolved()
        self.packing = Packing(
            estimator=estimator(algorithm.advantage),
            aggregation=algorithm.aggregation,
            constant_tokens=algorithm.constant_tokens,
            overlong=config.overlong,
            overlong_penalty=config.overlong_penalty,
            max_row_tokens=config.max_row_tokens,
            max_staleness=config.max_staleness,
        )
        self.slots = asyncio.Semaphore(config.max_concurrent_rollouts)
        self.faults = FaultWatch(
            config.max_fault_share, 2 * config.group_size * config.groups_per_step
        )
        self.step = 0
        self.version = 0
        self.pending: deque[GroupRow] = deque()
        """Groups that a former process admitted and that are not trained yet."""
        self.partial: dict[int, list[int]] = {}
        """Members trained of groups that are not trained completely, by the group's number."""
        self.admitted = 0
        self.rollout_s: deque[float] = deque(maxlen=512)
        """Durations of the latest rollouts."""

    # --- begin and resume --------------------------------------------------------------------

    async def begin(self) -> None:
        """Starts the run, or goes on from its last checkpoint."""
        checkpoints = self.store.checkpoints()
        if checkpoints:
            last = max(checkpoints, key=lambda row: row.step)
            self.step = last.step
            given_back = await self.store.rewind(last.step)
            # What the host spoiled in a former process is tried again.
            await self.store.unfinal(TRAIN, [str(o) for o in Outcome if o.host_fault])
            published = await self.learner.restore(self.store.folder / last.path)
            if published.hash != last.hash:
                raise TrainingError(
                    f"the checkpoint {last.path} holds weights {published.hash}, the run's record "
                    f"says {last.hash}: the files were changed"
                )
            self.pending.extend(self.store.groups(consumed=False))
            self.partial = {int(k): places for k, places in last.state["partial"].items()}
            await self.store.event(
                "training.resumed",
                {"step": last.step, "groups_given_back": given_back, "pending": len(self.pending)},
            )
        else:
            self.pending.extend(self.store.groups(consumed=False))
            published = await self.learner.current()
        self.admitted = len(self.store.groups())
        self.version = published.version
        await self.policy.update(published)
        if not checkpoints:
            await self.checkpoint()
        elif self.on_checkpoint is not None and self.config.evaluates_at(self.step):
            await self.on_checkpoint(Checkpoint(self.step, published))

    # --- rollouts ----------------------------------------------------------------------------

    async def admit(self) -> GroupRow:
        """The next group: one left over by a former process, or a new one."""
        if self.pending:
            return self.pending.popleft()
        task = self.tasks.draw(self.admitted)
        self.admitted += 1
        return await self.store.admit_group(
            self.host.environment.name, task.id, self.config.group_size, self.version
        )

    def task_of(self, row: GroupRow) -> Task:
        """What the members of a group play.

        Raises:
            TrainingError: it is not for training.
        """
        # Numbers are given in the order of the draws, so the number says the task.
        task = self.tasks.draw(row.id - 1)
        if task.id != row.task_id:
            task = self.host.environment.tasks.get(row.task_id)
        refuse_unless_train(task)
        return task

    def sessions_of(self, row: GroupRow) -> list[str]:
        """The names by which the policy will know the members of a group."""
        task, name = self.task_of(row), self.host.environment.name
        return [
            self.host.session(
                Job(task, TRAIN, index), self.store.next_attempt(TRAIN, name, task.id, index)
            )
            for index in row.sample_indexes
        ]

    async def play(self, row: GroupRow, on_member: OnMember | None = None) -> Group:
        """Plays a group to its end.

        Args:
            row: which group.
            on_member: awaited with the place of each member that is finished.

        Raises:
            TrainingError: its task is not for training, or the host spoils too many rollouts.
        """
        task = self.task_of(row)

        async def finished(place: int, trajectory: Trajectory) -> None:
            self.rollout_s.append(trajectory.timing.total_s)
            self.faults.see(trajectory)
            if on_member is not None:
                await on_member(place, trajectory)

        trajectories = await rollout_group(
            task,
            row.sample_indexes,
            self.host,
            purpose=TRAIN,
            slots=self.slots,
            on_member=finished,
        )
        return Group(row.id, tuple(trajectories))

    # --- learning ----------------------------------------------------------------------------

    async def learn(
        self,
        groups: Sequence[Group],
        filtered: Sequence[Group],
        clock: StepClock,
        partial: Mapping[int, list[int]] | None = None,
    ) -> Metrics:
        """One training step, and everything that must be on disk after it.

        Args:
            groups: what the step is made of.
            filtered: groups without signal that others replaced.
            clock: of this step.
            partial: groups of which only the members at these places are trained after it.

        Returns:
            The step's metrics, as stored.
        """
        self.step += 1
        self.partial = dict(partial or {})
        batch, metrics = pack(groups, self.packing, version=self.version)
        metrics.update(_rewards([*groups, *filtered]))
        metrics["groups_filtered"] = float(len(filtered))
        loud = sum(group.signal for group in groups)
        quiet = loud < self.config.min_signal * len(groups)
        metrics["skipped_quiet"] = float(quiet)
        metrics["skipped_empty"] = float(batch is None and not quiet)
        if batch is not None and not quiet:
            learned = await self.learner.update(batch)
            metrics["skipped_not_finite"] = learned.pop("skipped", 0.0)
            metrics.update(learned)
            if not metrics["skipped_not_finite"]:
                await self._hand_over(clock)
            else:
                await self.store.event("training.not_finite", {"step": self.step})
        metrics["version"] = float(self.version)
        metrics.update(self._times(metrics, [*groups, *filtered], clock))
        await self.store.metrics(self.step, metrics)
        consumed = [g.ticket for g in (*groups, *filtered) if g.ticket not in self.partial]
        await self.store.consume_groups(consumed, self.step)
        logger.info("step %d: reward %.3f", self.step, metrics.get("reward", float("nan")))
        if self.config.saves_at(self.step):
            await self.checkpoint()
        return metrics

    async def _hand_over(self, clock: StepClock) -> None:
        started = time.monotonic()
        published = await self.learner.publish()
        await self.policy.update(published)
        if self.policy.version != published.version:
            raise TrainingError(
                f"the policy samples with version {self.policy.version} after it was given "
                f"{published.version}: new weights do not reach it"
            )
        self.version = published.version
        clock.sync_s = time.monotonic() - started

    def _times(self, metrics: Metrics, groups: Sequence[Group], clock: StepClock) -> Metrics:
        wall = max(time.monotonic() - clock.began, 1e-9)
        learner_s = metrics.get("learner_s", 0.0)
        busy = sum(t.timing.total_s for g in groups for _, t in g.members)
        return {
            "step_s": wall,
            "wait_rollouts_s": clock.wait_rollouts_s,
            "sync_s": clock.sync_s,
            "learner_busy": learner_s / wall,
            "slots_busy": busy / (wall * self.config.max_concurrent_rollouts),
            "tokens_sampled_per_s": metrics["tokens_sampled"] / wall,
            "tokens_trained_per_s": metrics["tokens_trained"] / wall,
        }

    # --- checkpoints -------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """Writes a checkpoint and tells whoever evaluates."""
        folder = self.store.folder / "checkpoints" / f"step_{self.step:06d}"
        published = await self.learner.save(folder)
        await self.store.checkpoint(
            version=published.version,
            step=self.step,
            path=folder,
            hash=published.hash,
            state={"partial": {str(ticket): places for ticket, places in self.partial.items()}},
        )
        for old in sorted(folder.parent.glob("step_*"))[:-KEEP_OPTIMISERS]:
            (old / "optimiser.safetensors").unlink(missing_ok=True)
        made = Checkpoint(self.step, published)
        if self.on_checkpoint is not None and self.config.evaluates_at(self.step):
            await self.on_checkpoint(made)
        return made


@asynccontextmanager
async def one_error() -> AsyncIterator[None]:
    """Around a `TaskGroup`: raises the first error itself in place of a group of errors."""
    try:
        yield
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


def _rewards(groups: Sequence[Group]) -> Metrics:
    """Over all groups that were played, the filtered ones included: they are part of the truth."""
    rewards = rewards_of(groups)
    known = rewards[~np.isnan(rewards)]
    if not known.size:
        return {}
    return {"reward": float(known.mean()), "reward_std": float(known.std())}
