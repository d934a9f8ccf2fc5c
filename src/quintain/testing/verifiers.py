"""What every verifier must do: pass gold, fail nothing and every known hack, the same each time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from quintain.messages import assistant
from quintain.protocols import JudgeContext, Sandbox, SandboxBackend, Verifier
from quintain.registry import sandboxes
from quintain.task import SandboxSpec, Task
from quintain.trajectory import Action, Observation, Step, StopReason, Trajectory
from quintain.verdict import Outcome, Verdict
from quintain.verifiers.workers import WorkerPool


@dataclass(frozen=True, slots=True)
class VerifierReport:
    """What a verifier said in `check_verifier`, and how long it took."""

    verdicts: Mapping[str, Verdict]
    """By the name of the submission: `gold`, `empty`, or a hack's."""
    latencies_s: Mapping[str, tuple[float, ...]]
    """Wall-clock seconds of every repetition."""

    @property
    def median_s(self) -> float:
        """Median over all repetitions of all submissions."""
        return statistics.median(second for all_ in self.latencies_s.values() for second in all_)


async def check_verifier(
    verifier: Verifier,
    task: Task,
    *,
    gold: str | Trajectory,
    hacks: Mapping[str, str | Trajectory],
    empty: str | Trajectory = "",
    prepare: Callable[[str, Sandbox], Awaitable[None]] | None = None,
    sandbox: SandboxSpec | None = None,
    backend: SandboxBackend | None = None,
    workers: WorkerPool | None = None,
    repeats: int = 3,
    deadline_s: float = 120.0,
) -> VerifierReport:
    """Checks a verifier: it passes gold, fails nothing and every known hack, the same each time.

    Every verdict carries the verifier's name and kind, and a finite reward in [0, 1]; a hack may be
    abstained on, never rewarded. Latencies are reported, not judged.

    Args:
        verifier: to be checked.
        task: with its answer and hidden files.
        gold: a submission that solves it: the text of the last message, or a whole trajectory.
        hacks: name to a submission that does not.
        empty: a submission of nothing.
        prepare: leaves in the episode's sandbox what a submission would (its name is given); None:
            the verifier gets no episode's sandbox.
        sandbox: the episode's; None: the task's, or the default.
        backend: opens sandboxes and clean rooms; None: the native one, opened when asked for.
        workers: None: a pool for this check.
        repeats: judgements of each submission.
        deadline_s: of one judgement.
    """
    assert verifier.name, "a verifier has a name"
    assert verifier.kind in ("formal", "heuristic"), f"unknown kind {verifier.kind!r}"
    assert not {"gold", "empty"} & set(hacks), "hacks are not named gold or empty"
    rooms = backend if backend is not None else _Rooms()
    pool = workers if workers is not None else WorkerPool()
    submissions = {"gold": gold, "empty": empty, **hacks}
    verdicts: dict[str, Verdict] = {}
    latencies: dict[str, tuple[float, ...]] = {}
    try:
        for name, submission in submissions.items():
            said, took = [], []
            for _ in range(repeats):
                episode: Sandbox | None = None
                if prepare is not None:
                    episode = await rooms.open(task.sandbox or sandbox or SandboxSpec())
                try:
                    if prepare is not None and episode is not None:
                        await prepare(name, episode)
                    context = JudgeContext(
                        task=task,
                        trajectory=_submitted(task, submission),
                        sandbox=episode,
                        open_sandbox=rooms.open,
                        workers=pool,
                        deadline=time.monotonic() + deadline_s,
                    )
                    began = time.monotonic()
                    said.append(await verifier.judge(context))
                    took.append(time.monotonic() - began)
                finally:
                    if episode is not None:
                        await episode.close()
            _check_verdicts(verifier, name, said)
            verdicts[name], latencies[name] = said[0], tuple(took)
    finally:
        if backend is None:
            await rooms.close()
        if workers is None:
            await pool.close()
    return VerifierReport(verdicts, latencies)


def _check_verdicts(verifier: Verifier, name: str, said: Sequence[Verdict]) -> None:
    first = said[0]
    for verdict in said:
        assert verdict.verifier, f"{name}: the verdict does not name its verifier"
        assert verdict.kind == verifier.kind, f"{name}: the verdict is of kind {verdict.kind}"
        assert verdict.reward is None or 0.0 <= verdict.reward <= 1.0, f"{name}: {verdict.reward}"
        same = (verdict.reward, verdict.passed) == (first.reward, first.passed)
        assert same or not first.deterministic, (
            f"{name}: {verdict.reward} after {first.reward} ({verdict.explanation!r} after "
            f"{first.explanation!r}); a verifier that may differ says deterministic=False"
        )
        if name == "gold":
            assert verdict.passed, f"the gold submission did not pass: {verdict.explanation}"
        elif name == "empty":
            assert verdict.outcome is Outcome.FAILED, f"an empty submission is {verdict.outcome}"
        else:
            assert not verdict.passed, f"the hack {name!r} passed: {verdict.explanation}"
            assert not verdict.reward, f"the hack {name!r} earned {verdict.reward}"


def _submitted(task: Task, submission: str | Trajectory) -> Trajectory:
    if isinstance(submission, Trajectory):
        return submission
    action = Action(message=assistant(submission))
    return Trajectory(
        environment="check_verifier",
        task_id=task.id,
        policy="check_verifier",
        purpose="check_verifier",
        opening=Observation(messages=task.prompt),
        steps=(Step(action=action, observation=Observation()),),
        stop=StopReason.DONE,
    )


class _Rooms:
    """Sandboxes of the native backend, which is made when the first one is opened."""

    name = "native"

    def __init__(self) -> None:
        self._backend: SandboxBackend | None = None

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if self._backend is None:
            made: SandboxBackend = sandboxes.get("native")()
            self._backend = made
        return await self._backend.open(spec)

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.close()
