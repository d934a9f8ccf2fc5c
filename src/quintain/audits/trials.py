"""Plays submissions through an environment, in several passes, and keeps what the verifier said.

Everything goes the way of a rollout: sandbox, episode, harness, verifier. One host serves a pass,
so that its workers are used again; the passes differ in order, in load and in their workers.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain.audits.submissions import Script, Submission
from quintain.messages import Message, Sampling, ToolSpec, assistant
from quintain.protocols import Environment
from quintain.record import derive_seed
from quintain.rollouts import Host, Job, rollout
from quintain.task import Task
from quintain.trajectory import Action, Trajectory, Usage
from quintain.verdict import Outcome

ATTEMPTS = 3


@dataclass(slots=True)
class Trial:
    """One submission to one task, and what became of it in each pass."""

    task: Task
    submission: Submission
    outcomes: list[Outcome] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    explanations: list[str] = field(default_factory=list)
    checks: int = 0
    """That the last verdict names."""

    @property
    def passed(self) -> bool:
        """Whether it earned a pass in any pass."""
        return Outcome.SOLVED in self.outcomes

    @property
    def judged(self) -> int:
        """In how many passes the verifier gave a reward."""
        return sum(outcome.judged for outcome in self.outcomes)

    @property
    def flipped(self) -> bool:
        """Whether the verdict changed between passes; an abstention counts as a verdict."""
        said = [o for o in self.outcomes if not o.host_fault]
        return len(set(said)) > 1

    def differs(self, number: int) -> bool:
        """Whether the verdict of a pass is another than the first one's; faults count for none."""
        both = [self.outcomes[0], *self.outcomes[number : number + 1]]
        return len(set(both)) > 1 and not any(outcome.host_fault for outcome in both)

    def add(self, trajectory: Trajectory) -> None:
        """Keeps what came of it this time."""
        verdict = trajectory.verdict
        assert trajectory.outcome is not None
        self.outcomes.append(trajectory.outcome)
        self.rewards.append(trajectory.reward)
        self.verify_s.append(trajectory.timing.verify_s)
        self.checks = 0 if verdict is None else len(verdict.checks)
        fault = "" if trajectory.error is None else trajectory.error.message
        self.explanations.append(fault or ("" if verdict is None else verdict.explanation))


@dataclass(frozen=True, slots=True)
class Pass:
    """One round over all submissions."""

    name: str
    concurrency: int
    shuffled: bool = False
    hash_seed: int | None = None
    """Of the worker processes."""


PASSES = (
    Pass("in order, one at a time", 1, hash_seed=0),
    Pass("shuffled, other workers and hash seeds", 1, shuffled=True, hash_seed=1),
    Pass("shuffled, under load", 8, shuffled=True),
)
"""What a verdict must not depend on."""


class Cast:
    """A policy that plays the script which its session was given."""

    name = "audit"
    version = 0

    def __init__(self) -> None:
        self._left: dict[str, list[Message]] = {}

    def give(self, session: str, script: Script) -> None:
        """Sets what a session says."""
        self._left[session] = list(reversed(script))

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """The next message of the session's script; nothing once it has come to its end."""
        left = self._left[session]
        message = left.pop() if left else assistant("")
        finish = "tool_calls" if message.tool_calls else "stop"
        return Action(message=message, finish=finish, usage=Usage(calls=1))


@dataclass(frozen=True, slots=True)
class Cost:
    """What a pass took."""

    name: str
    verdicts: int
    wall_s: float
    cpu_s: float
    """Of this process and those of its children that ended; sandboxes have their own accounts."""


async def play(
    environment: Environment,
    trials: Sequence[Trial],
    how: Pass,
    *,
    host: Mapping[str, Any],
    seed: int = 0,
    on_done: Callable[[Trial], None] | None = None,
) -> Cost:
    """Plays every trial once.

    Args:
        environment: under audit.
        trials: get what came of them.
        how: order and load.
        host: further settings of `Host`.
        seed: of the order.
        on_done: called after each.
    """
    cast = Cast()
    order = list(enumerate(trials))
    if how.shuffled:
        random.Random(derive_seed(seed, "audit", how.name)).shuffle(order)
    waiting = iter(order)
    began, before = time.monotonic(), _cpu_s()

    settings = {"retries": ATTEMPTS - 1, "hash_seed": how.hash_seed, **host}
    async with Host(environment, cast, **settings) as surroundings:

        async def worker() -> None:
            for number, trial in waiting:
                job = Job(trial.task, f"audit:{number}")
                for attempt in range(ATTEMPTS):
                    cast.give(surroundings.session(job, attempt), trial.submission.script)
                trial.add(await rollout(job, surroundings))
                if on_done is not None:
                    on_done(trial)

        async with asyncio.TaskGroup() as group:
            for _ in range(how.concurrency):
                group.create_task(worker())
    return Cost(how.name, len(trials), time.monotonic() - began, _cpu_s() - before)


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
