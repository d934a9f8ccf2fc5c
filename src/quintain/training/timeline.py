"""What learner and rollouts do at every moment of a run, added up: utilisation and waiting.

The learner is in one state at a time, every rollout in one stage. The seconds of both are added up
exactly, as they change, in bins along the run's own clock (which stands still while no process
trains it). A bin holds the share of time that the learner spent in each state, the mean number of
rollouts in each stage, and the share of time in which somebody was sampling at all. Bins are a
second wide for ten minutes, then ten seconds, after two hours a minute.

It also knows, of each running rollout, its stage and the newest version that sampled a token of it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Literal, get_args

from quintain.protocols import Metrics
from quintain.rollouts.host import Job
from quintain.rollouts.observer import Stage
from quintain.trajectory import Action

LearnerState = Literal[
    "update", "rollouts", "weights", "packing", "checkpoint", "evaluation", "paused"
]
"""Learns; waits for rollouts; hands weights over; makes batches of trajectories; writes a
checkpoint; waits for an evaluation; waits because the host spoils too many rollouts."""
SCOPE = "timeline"
"""Of the metrics in the store; their step is the second at which a bin begins."""
Key = tuple[str, int]


class Timeline:
    """Adds up; the `Observer` of a training run's rollouts.

    Args:
        began_s: what the run's clock shows.
        clock: seconds.
    """

    def __init__(self, began_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.stages: dict[Key, Stage] = {}
        """What each rollout does now, by task and sample."""
        self.newest: dict[Key, int] = {}
        """The newest version that sampled a token of a running rollout."""
        self.on_retry: Callable[[Job], None] | None = None
        """Told when the host spoiled an attempt and the rollout waits for another."""
        self._clock = clock
        self._start = clock() - began_s
        self._now = began_s
        self.state: LearnerState = "rollouts"
        """What the learner does now."""
        self.began: dict[Key, float] = {}
        """When each running rollout was first seen, on the run's clock."""
        self._counts: dict[str, int] = dict.fromkeys(get_args(Stage), 0)
        self._bins: dict[float, defaultdict[str, float]] = {}
        self._step: defaultdict[str, float] = defaultdict(float)

    # --- what is told ------------------------------------------------------------------------

    def enters(self, job: Job, stage: Stage | None) -> None:
        """See `Observer`."""
        self._advance()
        key = (job.task.id, job.sample_index)
        before = self.stages.pop(key, None)
        if before is not None:
            self._counts[before] -= 1
            if stage == "queue" and self.on_retry is not None:
                self.on_retry(job)
        if stage is not None:
            self.stages[key] = stage
            self._counts[stage] += 1
            self.began.setdefault(key, self._now)
        else:
            self.newest.pop(key, None)
            self.began.pop(key, None)

    def age_s(self, key: Key) -> float:
        """How long a rollout has been running, its wait for a place included."""
        self._advance()
        return self._now - self.began.get(key, self._now)

    def acts(self, job: Job, action: Action) -> None:
        """See `Observer`."""
        version = max((span.policy_version for span in action.tokens), default=None)
        if version is not None:
            self.newest[job.task.id, job.sample_index] = version

    def learner(self, state: LearnerState) -> LearnerState:
        """The learner does this from now on; returns what it did before."""
        self._advance()
        before, self.state = self.state, state
        return before

    # --- what comes of it --------------------------------------------------------------------

    def step(self) -> Metrics:
        """Seconds in each state and stage since the last call, for a step's metrics."""
        self._advance()
        out, self._step = self._step, defaultdict(float)
        return {f"time/{name}": seconds for name, seconds in out.items() if name != "all"}

    def bins(self, *, last: bool = False) -> list[tuple[int, Metrics]]:
        """The bins that are over (and with `last` the one that is not), each given out once."""
        self._advance()
        over = [at for at in self._bins if last or at + width(at) <= self._now]
        out: list[tuple[int, Metrics]] = []
        for at in sorted(over):
            sums = self._bins.pop(at)
            seconds = sums.pop("all")
            out.append((int(at), {name: value / seconds for name, value in sums.items()}))
        return out

    def _advance(self) -> None:
        """Adds up what has gone on until now."""
        end = self._clock() - self._start
        busy = {f"rollouts/{stage}": count for stage, count in self._counts.items() if count}
        while self._now < end:
            at = self._now - self._now % width(self._now)
            until = min(end, at + width(at))
            seconds = until - self._now
            for sums in (self._bins.setdefault(at, defaultdict(float)), self._step):
                sums["all"] += seconds
                sums[f"learner/{self.state}"] += seconds
                if self._counts["policy"]:
                    sums["generation"] += seconds
                for name, count in busy.items():
                    sums[name] += seconds * count
            self._now = until


def width(at_s: float) -> float:
    """Seconds of the bin that holds a moment of the run."""
    return 1.0 if at_s < 600 else 10.0 if at_s < 7200 else 60.0
