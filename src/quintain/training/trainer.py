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
from contextlib import asynccontextmanager

import numpy as np

from quintain.errors import PolicyRestarts, TrainingError
from quintain.protocols import Metrics, Published
from quintain.record import Json
from quintain.rollouts.acting import CALLED_AGAIN
from quintain.rollouts.host import Host, Job
from quintain.rollouts.schedule import Playing, rollout_group
from quintain.store import GroupRow, Store
from quintain.task import Task
from quintain.training.batching import pack
from quintain.training.config import TrainConfig
from quintain.training.contracts import AsyncLearner, InStep, OnCheckpoint, TrainedPolicy
from quintain.training.evaluations import Evaluations
from quintain.training.faults import FaultWatch, Slots
from quintain.training.groups import Group, rewards_of
from quintain.training.guards import WARNING, Watch
from quintain.training.sampler import TaskSampler, refuse_unless_train
from quintain.training.timeline import SCOPE, Timeline
from quintain.trajectory import TRAIN, Trajectory
from quintain.verdict import Outcome

logger = logging.getLogger(__name__)
KEEP_OPTIMISERS = 2
"""Checkpoints that one can resume from; older ones keep their weights only."""
OnMember = Callable[[int, Trajectory], Awaitable[None]]


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
        past_s = max((second for second, _, _ in store.metric_rows(scope=SCOPE)), default=-1) + 1
        self.timeline = Timeline(past_s)
        self.evaluations = Evaluations(on_checkpoint, policy, store, self._evaluating)
        self.packing = config.packing()
        self.faults = FaultWatch(
            config.max_fault_share,
            2 * config.group_size * config.groups_per_step,
            config.fault_patience_s,
            self._faulty,
        )
        self.slots = Slots(config.max_concurrent_rollouts, self.faults.going)
        host.again, host.observer = self.faults.again, self.timeline
        self.step = 0
        self.version = 0
        self.pending: deque[GroupRow] = deque()
        """Groups that a former process admitted and that are not trained yet."""
        self.partial: dict[int, list[int]] = {}
        """Members trained of groups that are not trained completely, by the group's number."""
        self.admitted = 0
        self.rollout_s: deque[float] = deque(maxlen=512)
        """Durations of the latest rollouts."""
        self.step_began = time.monotonic()
        self.playing: dict[int, Playing] = {}
        """Groups that are being played, by number."""
        self.drawn: dict[int, Task] = {}
        """Tasks of groups that have not been played to their end, by the group's number."""
        self.watch = Watch()
        self._noting: asyncio.Task[None] | None = None
        self._called_again = 0

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
            if self._exactly_again:
                await self.store.play_again(TRAIN, list(self.pending))
            self.partial = {int(k): places for k, places in last.state["partial"].items()}
            self.tasks.restore(last.state.get("tasks", {}))
            self._look_back()
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
        await self._finish_evaluations()
        self.step_began = time.monotonic()
        self.timeline.step()

    def _look_back(self) -> None:
        """Shows the guards the steps of former processes."""
        steps: dict[int, dict[str, float | None]] = {}
        for step, name, value in self.store.metric_rows():
            if step <= self.step:
                steps.setdefault(step, {})[name] = value
        for step in sorted(steps):
            self.watch.see(steps[step])

    @property
    def _exactly_again(self) -> bool:
        """Whether a step that was cut off is to be played whole, as it would have been.

        Which rollouts share a batch decides the last bits of what a model samples: where a run is
        to repeat bit for bit, those that had finished must not be missing from their batch.
        """
        config, decided = self.config, self.store.meta("training.mode")
        asynchronous = config.mode == "async" or (decided or {}).get("mode") == "async"
        return config.repeatable and isinstance(self.policy, InStep) and not asynchronous

    async def _finish_evaluations(self) -> None:
        """Those of checkpoints whose evaluation was cut off in a former process."""
        done = self.evaluations.done()
        for row in sorted(self.store.checkpoints(), key=lambda row: row.step):
            if row.step not in done and self.config.evaluates_at(row.step):
                path = self.store.folder / row.path / "model.safetensors"
                await self.evaluations.evaluate(row.step, Published(row.version, path, row.hash))

    # --- rollouts ----------------------------------------------------------------------------

    async def admit(self) -> GroupRow:
        """The next group: one left over by a former process, or a new one."""
        if self.pending:
            return self.pending.popleft()
        task = self.tasks.draw(self.admitted)
        self.admitted += 1
        row = await self.store.admit_group(
            self.host.environment.name, task.id, self.config.group_size, self.version
        )
        self.drawn[row.id] = task
        return row

    def task_of(self, row: GroupRow) -> Task:
        """What the members of a group play.

        Raises:
            TrainingError: it is not for training.
        """
        task = self.drawn.get(row.id) or self.host.environment.tasks.get(row.task_id)
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
            self._called_again += sum(event.kind == CALLED_AGAIN for event in trajectory.events)
            if on_member is not None:
                await on_member(place, trajectory)

        playing = self.playing[row.id] = Playing()
        try:
            trajectories = await rollout_group(
                task,
                row.sample_indexes,
                self.host,
                purpose=TRAIN,
                slots=self.slots,
                on_member=finished,
                playing=playing,
            )
        finally:
            del self.playing[row.id]
            self.drawn.pop(row.id, None)
        return Group(row.id, tuple(trajectories))

    # --- learning ----------------------------------------------------------------------------

    async def learn(
        self,
        groups: Sequence[Group],
        filtered: Sequence[Group],
        partial: Mapping[int, list[int]] | None = None,
        closed: Sequence[int] = (),
        more: Metrics | None = None,
    ) -> None:
        """One training step; what must be on disk after it is there before the next one ends.

        Args:
            groups: what the step is made of.
            filtered: groups without signal that others replaced.
            partial: groups of which only the members at these places are trained after it.
            closed: groups that end without anything of theirs being trained in this step.
            more: metrics to store with it.
        """
        self.evaluations.check()
        self.step += 1
        self.partial = dict(partial or {})
        self.timeline.learner("packing")
        batch, metrics = pack(groups, self.packing, version=self.version)
        metrics.update(_rewards([*groups, *filtered]))
        metrics.update(more or {})
        metrics["groups_filtered"] = float(len(filtered))
        metrics["calls_repeated"], self._called_again = float(self._called_again), 0
        metrics["share_filtered"] = len(filtered) / max(1, len(groups) + len(filtered))
        for group in (*groups, *filtered):
            self._seen(group)
        loud = sum(group.signal for group in groups)
        quiet = loud < self.config.signal_needed * len(groups)
        metrics["skipped_quiet"] = float(quiet)
        metrics["skipped_empty"] = float(batch is None and not quiet)
        if batch is not None and not quiet:
            self.timeline.learner("update")
            learned = await self.learner.update(batch)
            metrics["skipped_not_finite"] = learned.pop("skipped", 0.0)
            metrics.update(learned)
            if not metrics["skipped_not_finite"]:
                self.timeline.learner("weights")
                await self._hand_over()
            else:
                await self.store.event("training.not_finite", {"step": self.step})
        metrics["version"] = float(self.version)
        metrics.update(self._times(metrics, [*groups, *filtered]))
        self._wait()
        consumed = [g.ticket for g in (*groups, *filtered) if g.ticket not in self.partial]
        await self.noted()
        self._noting = asyncio.create_task(self._note(self.step, metrics, [*consumed, *closed]))
        if self.config.saves_at(self.step):
            self.timeline.learner("checkpoint")
            await self.noted()
            await self.checkpoint()
            self._wait()

    def _seen(self, group: Group) -> None:
        """Tells the sampler how the members did that are trained now."""
        known = [t for _, t in group.members if t.reward is not None]
        if known:
            self.tasks.seen(known[0].task_id, [t.reward for t in known if t.reward is not None])

    def _wait(self) -> None:
        self.timeline.learner("rollouts" if self.faults.going.is_set() else "paused")

    async def _faulty(self, kind: str, data: dict[str, Json]) -> None:
        """A pause begins or ends."""
        if self.timeline.state in ("rollouts", "paused"):
            self._wait()
        await self.store.event(kind, data)

    async def _note(self, step: int, metrics: Metrics, consumed: Sequence[int]) -> None:
        """Writes down what a step has done; the next one may have begun."""
        warnings = self.watch.see(metrics)
        for warned in warnings:
            logger.warning("step %d: %s", step, warned.message)
            await self.store.event(
                WARNING, {"step": step, "name": warned.name, "message": warned.message}
            )
        await self.store.metrics(step, {**metrics, "warnings": float(len(warnings))})
        await self.store.consume_groups(consumed, step)
        for second, values in self.timeline.bins():
            await self.store.metrics(second, values, scope=SCOPE)
        logger.info("step %d: reward %.3f", step, metrics.get("reward", float("nan")))

    async def noted(self) -> None:
        """Returns when everything about the steps so far is on disk."""
        noting, self._noting = self._noting, None
        if noting is not None:
            await noting

    async def _hand_over(self) -> None:
        published = await self.learner.publish()
        try:
            await self.policy.update(published)
        except PolicyRestarts:
            # Its process died under the update: the next one starts with the new weights.
            await self.policy.update(published)
        if self.policy.version != published.version:
            raise TrainingError(
                f"the policy samples with version {self.policy.version} after it was given "
                f"{published.version}: new weights do not reach it"
            )
        self.version = published.version

    def _times(self, metrics: Metrics, groups: Sequence[Group]) -> Metrics:
        now = time.monotonic()
        wall, self.step_began = max(now - self.step_began, 1e-9), now
        spent = self.timeline.step()
        busy = sum(t.timing.total_s for g in groups for _, t in g.members)
        return {
            **spent,
            "step_s": wall,
            "wait_rollouts_s": spent.get("time/learner/rollouts", 0.0),
            "sync_s": spent.get("time/learner/weights", 0.0),
            "learner_busy": spent.get("time/learner/update", 0.0) / wall,
            "generation_busy": spent.get("time/generation", 0.0) / wall,
            "slots_busy": busy / (wall * self.config.max_concurrent_rollouts),
            "tokens_sampled_per_s": metrics["tokens_sampled"] / wall,
            "tokens_trained_per_s": metrics["tokens_trained"] / wall,
        }

    # --- checkpoints and the end -------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Writes a checkpoint and has it evaluated."""
        folder = self.store.folder / "checkpoints" / f"step_{self.step:06d}"
        published = await self.learner.save(folder)
        await self.store.checkpoint(
            version=published.version,
            step=self.step,
            path=folder,
            hash=published.hash,
            state={
                "partial": {str(ticket): places for ticket, places in self.partial.items()},
                "tasks": self.tasks.state(),
            },
        )
        for old in sorted(folder.parent.glob("step_*"))[:-KEEP_OPTIMISERS]:
            (old / "optimiser.safetensors").unlink(missing_ok=True)
        if self.config.evaluates_at(self.step):
            await self.evaluations.evaluate(self.step, published)

    def _evaluating(self, waits: bool) -> None:
        if waits:
            self.timeline.learner("evaluation")
        else:
            self._wait()

    async def finish(self) -> None:
        """Waits for what goes on beside the last step: what is noted, evaluated, drawn."""
        await self.noted()
        await self.evaluations.drain()
        for second, values in self.timeline.bins(last=True):
            await self.store.metrics(second, values, scope=SCOPE)

    async def close(self) -> None:
        """Ends what still goes on, after an error too; may be called twice."""
        self.host.again = self.host.observer = None
        if self._noting is not None:
            self._noting.cancel()
        await self.evaluations.close()


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
