"""A guard around any verifier: what it says is checked before it counts.

- **finite**: a verdict is a `Verdict` with a finite reward in [0, 1] or an abstention.
- **deadline**: a verdict that is late is an error, not a 0.
- **canary**: now and then a submission that must not pass is judged first: nothing at all, and
  whatever else the caller names. A verifier that passes one is switched off; from then on it
  raises, so that no reward of it is trained on.
- **determinism**: a share of the trajectories, chosen by a stable hash, is judged twice. A verdict
  that flips is an error, unless the verifier says that it may.
- **isolation**: a verifier that needs neither sandbox nor files runs in a killable worker process.

All are counted in `counts`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quintain.errors import ConfigError, VerifierError, boundary
from quintain.messages import assistant
from quintain.protocols import WORLD_ARTIFACT, GroupVerifier, JudgeContext, Sandbox, Verifier
from quintain.record import canonical, derive_seed
from quintain.task import SandboxSpec, Task
from quintain.trajectory import Action, Observation, Step, Trajectory
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.function import as_verifier
from quintain.verifiers.workers import BudgetExceeded

Fake = str | Trajectory
"""A submission that must not pass: the text of the last message, or a whole trajectory."""


def guarded(verifier: Verifier | Callable[..., Any] | str, **options: Any) -> Guarded:
    """A guard around a verifier, also one of groups; the options are those of `Guarded`."""
    made = as_verifier(verifier)
    return (GroupGuarded if isinstance(made, GroupVerifier) else Guarded)(made, **options)


class Guarded:
    """The verifier that it wraps, under guard; name and kind are the verifier's.

    Args:
        verifier: a verifier, a function or a registered name.
        deadline_s: wall-clock seconds of one verdict; None: the context's deadline only.
        canary_every: a canary before the first verdict and again after so many; 0: never.
        canaries: from a task to more submissions that must not pass.
        repeat_share: of the trajectories that are judged twice, in [0, 1].
        isolate: whether it runs in a worker process; it then has neither sandbox nor artifacts.
        cpu_s: budget of one isolated verdict; an input that uses it up fails.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        verifier: Verifier | Callable[..., Any] | str,
        *,
        deadline_s: float | None = None,
        canary_every: int = 64,
        canaries: Callable[[Task], Iterable[Fake]] | None = None,
        repeat_share: float = 0.05,
        isolate: bool = False,
        cpu_s: float = 10.0,
    ) -> None:
        if not 0 <= repeat_share <= 1:
            raise ConfigError(f"repeat_share is in [0, 1], got {repeat_share!r}")
        if canary_every < 0:
            raise ConfigError(f"canary_every is not negative, got {canary_every!r}")
        for option, value in (("deadline_s", deadline_s), ("cpu_s", cpu_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{option} is positive, got {value!r}")
        self.inner = as_verifier(verifier)
        self.name = self.inner.name
        self.kind: Kind = self.inner.kind
        self.deadline_s = deadline_s
        self.canary_every = canary_every
        self.canaries = canaries
        self.repeat_share = repeat_share
        self.isolate = isolate
        self.cpu_s = cpu_s
        self.counts: Counter[str] = Counter()
        """`verdicts`, `canaries`, `repeats`, `flips`, `late`, `malformed`, `refused`."""
        self.off = ""
        """Why it is switched off; empty while it is not."""
        self._canary_lock = asyncio.Lock()
        self._due = 0
        self._alone = partial(_judge_alone, self.inner)

    def check_gold(self, task: Task) -> None:
        """Lets the verifier refuse a task, where it can."""
        check = getattr(self.inner, "check_gold", None)
        if check is not None:
            check(task)

    async def judge(self, context: JudgeContext) -> Verdict:
        """The verifier's verdict, if it stands.

        Raises:
            VerifierError: it raised, was late, gave no verdict, flipped, or passed a canary.
        """
        await self._watch(context)
        if self.off:
            self.counts["refused"] += 1
            raise VerifierError(f"{self.name} is switched off: {self.off}")
        verdict = await self._judge(context)
        self.counts["verdicts"] += 1
        if self._chosen(context):
            await self._repeat(context, verdict)
        return verdict

    # --- canaries ---

    async def _watch(self, context: JudgeContext) -> None:
        """Judges the canaries when they are due; those who come meanwhile wait for the outcome."""
        if not self.canary_every or self.off:
            return
        async with self._canary_lock:
            if self._due > 0:
                self._due -= 1
                return
            more = () if self.canaries is None else self.canaries(context.task)
            for fake in ("", *more):
                self.counts["canaries"] += 1
                verdict = await self._judge_fake(context, fake)
                if verdict.reward:
                    self.off = (
                        f"it gave {verdict.reward:g} to a canary on task {context.task.id!r}: "
                        f"{_told(fake)!r} ({verdict.explanation[:200]})"
                    )
                    return
            self._due = self.canary_every - 1

    async def _judge_fake(self, context: JudgeContext, fake: Fake) -> Verdict:
        """Judges a fake as if it had been played: its sandbox holds the task's files only."""
        trajectory = fake if isinstance(fake, Trajectory) else _said(context.trajectory, fake)
        room: Sandbox | None = None
        if context.sandbox is not None:
            room = await context.open_sandbox(context.sandbox.spec)
        try:
            if room is not None:
                for path, data in context.task.files.items():
                    await room.write(path, data)
            world = context.task.world
            kept = {} if world is None else {WORLD_ARTIFACT: canonical(world).encode()}
            return await self._judge(
                replace(context, trajectory=trajectory, sandbox=room, artifact=kept.get)
            )
        finally:
            if room is not None:
                await room.close()

    # --- one verdict ---

    async def _judge(self, context: JudgeContext) -> Verdict:
        left = context.deadline - time.monotonic()
        if self.deadline_s is not None:
            left = min(left, self.deadline_s)
        context = replace(context, deadline=time.monotonic() + left)
        try:
            with boundary(VerifierError, f"verifier {self.name}"):
                async with asyncio.timeout(left) as limit:
                    run = self._in_worker if self.isolate else self.inner.judge
                    verdict: object = await run(context)
        except VerifierError as error:
            if isinstance(error.__cause__, TimeoutError) and limit.expired():
                self.counts["late"] += 1
                message = f"{self.name} did not answer within {left:.3g} s"
                raise VerifierError(message) from error
            raise
        return self._sound(verdict)

    def _sound(self, verdict: object) -> Verdict:
        wrong = ""
        if not isinstance(verdict, Verdict):
            wrong = f"it gave no Verdict but {verdict!r:.200}"
        elif verdict.reward is None:
            wrong = "it passed without a reward" if verdict.passed else ""
        elif not (math.isfinite(verdict.reward) and 0.0 <= verdict.reward <= 1.0):
            wrong = f"its reward is {verdict.reward!r}"
        elif verdict.passed and verdict.reward == 0.0:
            wrong = "it passed with reward 0"
        if wrong:
            self.counts["malformed"] += 1
            raise VerifierError(f"{self.name}: {wrong}")
        assert isinstance(verdict, Verdict)
        return verdict

    async def _in_worker(self, context: JudgeContext) -> Verdict:
        left = max(context.deadline - time.monotonic(), 0.001)
        try:
            return await context.workers.run(
                self._alone,
                *(context.task, context.trajectory, left),
                cpu_s=min(self.cpu_s, left),
                wall_s=left,
            )
        except BudgetExceeded as error:
            if error.budget != "cpu":
                raise
            check = Check(name="budget", passed=False, detail=str(error))
            why = f"judging this took more than {self.cpu_s:g} s of CPU"
            return Verdict.of(False, why, checks=(check,)).signed(self.name, self.kind)

    # --- determinism ---

    def _chosen(self, context: JudgeContext) -> bool:
        place = derive_seed("repeat", *context.trajectory.key, context.trajectory.text)
        return place < self.repeat_share * 2**63

    async def _repeat(self, context: JudgeContext, first: Verdict) -> None:
        second = await self._judge(context)
        self.counts["repeats"] += 1
        if (first.reward, first.passed) == (second.reward, second.passed):
            return
        self.counts["flips"] += 1
        if first.deterministic and second.deterministic:
            raise VerifierError(
                f"{self.name} gave {first.reward} and then {second.reward} to the same trajectory; "
                "a verifier that may differ says deterministic=False"
            )


class GroupGuarded(Guarded):
    """A guard around a verifier of groups: soundness and deadline also of its group verdicts.

    Canaries and repetitions are of single verdicts; a verifier of groups keeps its own.
    """

    async def judge_group(self, contexts: Sequence[JudgeContext]) -> list[Verdict]:
        """One verdict a context, in order.

        Raises:
            VerifierError: it raised, was late, or did not give one sound verdict a context.
        """
        assert isinstance(self.inner, GroupVerifier)
        left = min((context.deadline for context in contexts), default=0.0) - time.monotonic()
        left = left if self.deadline_s is None else min(left, self.deadline_s)
        try:
            with boundary(VerifierError, f"verifier {self.name}"):
                async with asyncio.timeout(left):
                    verdicts = await self.inner.judge_group(contexts)
        except VerifierError as error:
            self.counts["late"] += isinstance(error.__cause__, TimeoutError)
            raise
        if len(verdicts) != len(contexts):
            self.counts["malformed"] += 1
            raise VerifierError(f"{self.name}: {len(verdicts)} verdicts for {len(contexts)}")
        self.counts["verdicts"] += len(verdicts)
        return [self._sound(verdict) for verdict in verdicts]


@dataclass(frozen=True, slots=True)
class _NoWorkers:
    """Inside a worker process there are no further ones: functions are called right here."""

    async def run(
        self, function: Callable[..., Any], *args: Any, cpu_s: float, wall_s: float
    ) -> Any:
        return function(*args)


def _judge_alone(verifier: Verifier, task: Task, trajectory: Trajectory, wall_s: float) -> Verdict:
    async def no_room(_spec: SandboxSpec) -> Sandbox:
        raise VerifierError(f"{verifier.name} is isolated and has no sandbox: use isolate=False")

    context = JudgeContext(
        task=task,
        trajectory=trajectory,
        sandbox=None,
        open_sandbox=no_room,
        workers=_NoWorkers(),
        deadline=time.monotonic() + wall_s,
    )
    judging: Awaitable[Verdict] = verifier.judge(context)
    return asyncio.run(_awaited(judging))


async def _awaited(judging: Awaitable[Verdict]) -> Verdict:
    return await judging


def _said(like: Trajectory, text: str) -> Trajectory:
    """A trajectory of the same task whose only message is a text."""
    steps: Sequence[Step] = (
        Step(action=Action(message=assistant(text)), observation=Observation()),
    )
    return like.model_copy(
        update={"steps": tuple(steps), "verdict": None, "outcome": None, "artifacts": {}}
    )


def _told(fake: Fake) -> str:
    return (fake.text if isinstance(fake, Trajectory) else fake)[:120]
