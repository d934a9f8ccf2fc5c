"""Many rollouts: bounded concurrency, retries, a budget that stops admission, progress.

A sample that is in the store already is not run again. A fault of the host is committed as an
attempt that does not count, and tried again after a wait; the last attempt counts as what it is
and never as a reward.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from quintain.protocols import GroupVerifier, JudgeContext
from quintain.record import derive_seed
from quintain.rollouts.attempt import GatheredJudge, attempt, retryable
from quintain.rollouts.gathering import Gathering
from quintain.rollouts.host import Host, Job
from quintain.rollouts.watchdog import Watchdog
from quintain.task import Task
from quintain.trajectory import TRAIN, Trajectory


@dataclass(slots=True)
class Progress:
    """How far a schedule is."""

    total: int | None
    """Samples in all, those already in the store included; None: unknown."""
    done: int = 0
    resumed: int = 0
    """Of `done`, how many were in the store before."""
    retried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    """Why admission ended early; empty when it did not."""
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the end; None before there is anything to go by."""
        fresh = self.done - self.resumed
        if self.total is None or fresh == 0:
            return None
        return (time.monotonic() - self.began) / fresh * (self.total - self.done)


async def rollout(
    job: Job,
    host: Host,
    *,
    queue_s: float = 0.0,
    progress: Progress | None = None,
    first: int | None = None,
    gathered: GatheredJudge | None = None,
) -> Trajectory:
    """One sample to its final attempt, committed to the host's store.

    Args:
        job: which sample.
        host: the run's surroundings, entered.
        queue_s: how long the job waited to be started.
        progress: counts retries when given.
        first: number of the first attempt; None: whatever the store says comes next.
        gathered: see `attempt`.
    """
    store = host.store
    if first is None:
        first = 0
        if store is not None:
            first = store.next_attempt(
                job.purpose, host.environment.name, job.task.id, job.sample_index
            )
    try:
        number, last = first, first + host.retries
        while True:
            trajectory, blobs = await attempt(job, host, number, queue_s=queue_s, gathered=gathered)
            host.budget.spend(trajectory)
            if host.observer is not None and trajectory.outcome and trajectory.outcome.host_fault:
                host.observer.enters(job, "queue")
            final = number >= last or not retryable(trajectory)
            if final and host.again is not None and await host.again(trajectory):
                final, last = False, number + 1 + host.retries
            if store is not None:
                await store.commit(trajectory, final=final, blobs=blobs)
            if final:
                return trajectory
            if progress is not None:
                progress.retried += 1
            queue_s = 0.0
            # Full jitter, from a stable hash: a failed server is not hit by everyone at once.
            share = derive_seed(job.seed(host.run_seed), "backoff", number) / 2**63
            steps = (number - first) % (host.retries + 1)
            await asyncio.sleep(host.backoff_s * 2**steps * (0.5 + share))
            number += 1
    finally:
        if host.observer is not None:
            host.observer.enters(job, None)


async def schedule(
    jobs: Iterable[Job],
    host: Host,
    *,
    concurrency: int,
    total: int | None = None,
    on_done: Callable[[Trajectory, Progress], None] | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Runs all jobs that the store does not hold yet.

    Args:
        jobs: in the order to start them; taken one at a time, so it may be lazy.
        host: the run's surroundings, entered.
        concurrency: rollouts at once.
        total: how many jobs there are, for the estimate; None: counted when `jobs` has a length.
        on_done: called on the loop after each commit.
        progress: an object to count in; None: a new one.

    Returns:
        The final progress; `stopped` says why admission ended early, if it did.
    """
    if total is None and isinstance(jobs, Sequence):
        total = len(jobs)
    if progress is None:
        progress = Progress(total=total)
    done, attempts = _committed(host)
    pending: Iterator[Job] = iter(jobs)
    admitted = time.monotonic()

    async def worker() -> None:
        for job in pending:
            key = (job.purpose, job.task.id, job.sample_index)
            if key in done:
                progress.done += 1
                progress.resumed += 1
                continue
            if host.budget.exhausted:
                progress.stopped = f"budget: {host.budget.exhausted}"
                return
            trajectory = await rollout(
                job,
                host,
                queue_s=time.monotonic() - admitted,
                progress=progress,
                first=attempts.get(key, 0),
            )
            progress.done += 1
            progress.outcomes[str(trajectory.outcome)] += 1
            if on_done is not None:
                on_done(trajectory, progress)

    async with Watchdog(), asyncio.TaskGroup() as group:
        for _ in range(max(1, concurrency)):
            group.create_task(worker())
    return progress


_Key = tuple[str, str, int]


def _committed(host: Host) -> tuple[set[_Key], dict[_Key, int]]:
    """The samples that need no rollout, and the next attempt of those that were tried."""
    done: set[_Key] = set()
    attempts: dict[_Key, int] = {}
    if host.store is not None:
        for row in host.store.rows(environment=host.environment.name, final=None):
            key = (row.key.purpose, row.key.task_id, row.key.sample_index)
            attempts[key] = row.key.attempt + 1
            if row.final:
                done.add(key)
    return done, attempts


@dataclass(slots=True)
class Playing:
    """The members of a group while they are played."""

    members: list[asyncio.Task[Trajectory | None]] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)

    def drop(self, place: int) -> bool:
        """Cancels one member, and no other; whether there was something to cancel."""
        if place >= len(self.members) or self.members[place].done():
            return False
        self.dropped.add(place)
        return self.members[place].cancel()


async def rollout_group(
    task: Task,
    sample_indexes: Sequence[int],
    host: Host,
    *,
    purpose: str = TRAIN,
    slots: asyncio.Semaphore | None = None,
    on_member: Callable[[int, Trajectory], Awaitable[None]] | None = None,
    playing: Playing | None = None,
) -> list[Trajectory | None]:
    """The G samples of one task, in the order of their indexes, each to its final attempt.

    Samples that the store holds already are read, not run again. A verifier of groups judges the
    others together, once all are played, beside those that it has judged before.

    Args:
        task: what all of them play.
        sample_indexes: fixed when the group was admitted.
        host: the run's surroundings, entered.
        purpose: what they are stored under.
        slots: bounds how many rollouts of all groups run at once.
        on_member: awaited with the place in the group of each sample that is finished.
        playing: through which single members can be dropped.

    Returns:
        None at the place of a member that was dropped.
    """
    known: dict[int, Trajectory] = {}
    if host.store is not None:
        known = {
            trajectory.sample_index: trajectory
            for trajectory in host.store.trajectories(
                purpose=purpose, environment=host.environment.name, task_id=task.id
            )
            if trajectory.sample_index in sample_indexes
        }
    asked = time.monotonic()

    gathering = _gathering(task, sample_indexes, host, slots, list(known.values()))

    async def play(place: int, index: int) -> Trajectory:
        if index in known:
            return known[index]
        job = Job(task=task, purpose=purpose, sample_index=index)
        gathered = None if gathering is None else partial(gathering.judge, place)
        if host.observer is not None:
            host.observer.enters(job, "queue")
        try:
            if slots is None:
                return await rollout(job, host, gathered=gathered)
            async with slots:
                waited_s = time.monotonic() - asked
                return await rollout(job, host, queue_s=waited_s, gathered=gathered)
        finally:
            if gathering is not None:
                gathering.leave(place)

    async def one(place: int, index: int) -> Trajectory | None:
        try:
            trajectory = await play(place, index)
            if on_member is not None:
                await on_member(place, trajectory)
        except asyncio.CancelledError:
            if playing is not None and place in playing.dropped:
                return None
            raise
        return trajectory

    try:
        async with asyncio.TaskGroup() as group:
            members = [group.create_task(one(*each)) for each in enumerate(sample_indexes)]
            if playing is not None:
                playing.members = members
    finally:
        if gathering is not None:
            await gathering.close()
    return [member.result() for member in members]


def _gathering(
    task: Task,
    sample_indexes: Sequence[int],
    host: Host,
    slots: asyncio.Semaphore | None,
    known: Sequence[Trajectory],
) -> Gathering | None:
    """Where the members meet, if the verifier is one of groups."""
    verifier = host.environment.verifier
    if not isinstance(verifier, GroupVerifier):
        return None
    done = {trajectory.sample_index for trajectory in known}
    judged = [
        JudgeContext(
            task=task,
            trajectory=trajectory,
            sandbox=None,
            open_sandbox=host.open_sandbox,
            workers=host.workers,
            deadline=0.0,
        )
        for trajectory in known
    ]
    return Gathering(
        verifier,
        [place for place, index in enumerate(sample_indexes) if index not in done],
        judge_s=host.judge_s,
        gather_s=host.gather_s,
        slots=slots,
        judged=judged,
    )
