"""Judges stored trajectories again: by a new verifier, or a mended one, without sampling anything.

The new verdicts go into a run folder of their own, under the same keys and with the artifacts, so
that it reads as any other run; the old one is only read. What cannot be judged fairly any more is
told with the reason and has no verdict: an attempt that broke before its end, a task that is gone,
a verifier that wants the episode's sandbox, a file that was never kept.

::

    again = q.rescore("runs/one", my_verifier, environment=env)
    print(again)
    for change in again.changes:
        print(change)
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from quintain.config import provenance
from quintain.errors import ConfigError, QuintainError, StoreError, VerifierError, boundary
from quintain.evals.run import BEGUN, EvalRun
from quintain.policies.scripted import Scripted
from quintain.protocols import Environment, JudgeContext, Verifier
from quintain.record import Json, digest
from quintain.rollouts import Host, run_blocking
from quintain.store import Store, new_folder
from quintain.task import Task
from quintain.trajectory import TRAIN, Event, Trajectory, TrajectoryKey
from quintain.verdict import Outcome, Verdict
from quintain.verifiers.function import as_verifier
from quintain.verifiers.patterns import with_patterns

BEFORE = "rescore.before"
"""Event on a trajectory: what it was judged before."""
NOT_JUDGED = "rescore.not_judged"
"""Event of a run: a trajectory that could not be judged again, and why."""
Progress = Callable[[int, int], None]
"""Called with how many are done, of how many."""


@dataclass(frozen=True, slots=True)
class Change:
    """A verdict that came out otherwise."""

    key: TrajectoryKey
    before: Outcome
    reward_before: float | None
    explanation_before: str
    verifier_before: str
    after: Outcome
    reward: float | None
    explanation: str
    verifier: str

    @property
    def kind(self) -> str:
        """`solved → failed`, say."""
        return f"{self.before} → {self.after}"

    def to_json(self) -> dict[str, Json]:
        """All of it."""
        return {
            "purpose": self.key.purpose,
            "environment": self.key.environment,
            "task": self.key.task_id,
            "sample": self.key.sample_index,
            "before": {
                "outcome": str(self.before),
                "reward": self.reward_before,
                "explanation": self.explanation_before,
                "verifier": self.verifier_before,
            },
            "after": {
                "outcome": str(self.after),
                "reward": self.reward,
                "explanation": self.explanation,
                "verifier": self.verifier,
            },
        }

    def __str__(self) -> str:
        return (
            f"{self.key.task_id}:{self.key.sample_index} ({self.key.purpose}) {self.kind}: "
            f"{self.explanation_before or 'no reason given'} → "
            f"{self.explanation or 'no reason given'}"
        )


class Rescored:
    """What came of judging a run again; reads it all from the new run.

    Args:
        folder: of the new run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.store = Store.read(folder)
        about = (self.store.meta("config") or {}).get("rescored")
        if about is None:
            raise ConfigError(f"{folder} holds no verdicts of `rescore`")
        self.about: Mapping[str, Json] = about
        """`run` (the folder that was judged), `id`, `verifier`."""

    @property
    def folder(self) -> Path:
        """Where the new verdicts lie."""
        return self.store.folder

    @cached_property
    def judged(self) -> int:
        """Trajectories with a new verdict."""
        return len(self.store.rows())

    @cached_property
    def not_judged(self) -> dict[TrajectoryKey, str]:
        """Those without one, and why."""
        done = {row.key for row in self.store.rows()}
        out = {
            TrajectoryKey(*data["key"]): str(data["why"])
            for _, _, data in self.store.event_rows(NOT_JUDGED)
        }
        return {key: why for key, why in out.items() if key not in done}

    @cached_property
    def changes(self) -> list[Change]:
        """Verdicts with another outcome or reward than before."""
        return list(_changes(self.store.trajectories()))

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of change came about, the most frequent first."""
        return dict(Counter(change.kind for change in self.changes).most_common())

    def runs(self) -> list[EvalRun]:
        """The evals in it, for scores; training rollouts are in `store`."""
        return EvalRun.all(self.folder)

    def to_json(self) -> dict[str, Json]:
        """All of it."""
        return {
            "folder": str(self.folder),
            "run": self.about["run"],
            "verifier": self.about["verifier"],
            "judged": self.judged,
            "changed": len(self.changes),
            "counts": self.counts,
            "changes": [change.to_json() for change in self.changes],
            "not_judged": [
                {
                    "purpose": key.purpose,
                    "environment": key.environment,
                    "task": key.task_id,
                    "sample": key.sample_index,
                    "why": why,
                }
                for key, why in self.not_judged.items()
            ],
        }

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.counts.items())
        lines = [
            f"{self.judged} judged again by {self.about['verifier']}, {len(self.changes)} changed"
            + (f": {kinds}" if kinds else ""),
        ]
        if self.not_judged:
            lines.append(f"{len(self.not_judged)} not judged")
        return "\n".join(lines)


def _changes(trajectories: Iterator[Trajectory]) -> Iterator[Change]:
    for trajectory in trajectories:
        verdict, outcome = trajectory.verdict, trajectory.outcome
        before = next((e.data for e in trajectory.events if e.kind == BEFORE), None)
        if before is None or verdict is None or outcome is None:
            continue
        if (before["outcome"], before["reward"]) == (str(outcome), verdict.reward):
            continue
        yield Change(
            key=trajectory.key,
            before=Outcome(before["outcome"]),
            reward_before=before["reward"],
            explanation_before=before["explanation"],
            verifier_before=before["verifier"],
            after=outcome,
            reward=verdict.reward,
            explanation=verdict.explanation,
            verifier=verdict.verifier,
        )


class NotJudged(VerifierError):
    """A trajectory cannot be judged fairly any more; says why."""


@dataclass(slots=True)
class _Kept:
    """The artifacts of one stored trajectory, and what was asked for and never kept."""

    store: Store
    trajectory: Trajectory
    tried: frozenset[str]
    """Paths that were to be kept when it was played, as far as that was recorded."""
    missing: dict[str, str] = field(default_factory=dict)
    """Path to why it is missing, when that is not the candidate's doing."""

    def __call__(self, path: str) -> bytes | None:
        name = next((n for p, n in self.trajectory.artifacts.items() if _same(p, path)), None)
        if name is not None:
            try:
                return self.store.blob(name)
            except StoreError:
                self.missing[path] = "its content is gone from blobs/"
        elif not any(_same(tried, path) for tried in self.tried):
            self.missing[path] = "not kept with the run"
        return None

    @property
    def why_not(self) -> str:
        """What was asked for and is not known, in words; empty when there is nothing."""
        return ", ".join(f"{path}: {why}" for path, why in self.missing.items())


def _same(a: str, b: str) -> bool:
    """Whether two paths name one file; a relative one is below a working directory."""
    if a.startswith("/") == b.startswith("/"):
        return a == b
    return a.endswith(f"/{b}") or b.endswith(f"/{a}")


async def arescore(
    run: str | Path,
    verifier: Verifier | Callable[..., Any] | str | None = None,
    *,
    environment: Environment | Mapping[str, Environment],
    out: str | Path | None = None,
    purpose: str | None = None,
    resume: bool = False,
    concurrency: int = 8,
    on_progress: Progress | None = None,
    **host: Any,
) -> Rescored:
    """Judges the final trajectories of a stored run again.

    Args:
        run: the run's folder; it is only read.
        verifier: who judges now; None: the environment's own, as it is today.
        environment: where the tasks come from; several by name where the run has several.
        out: folder of the new run; None: a new one under `runs/`.
        purpose: only these trajectories ("train", or an eval's purpose); None: all.
        resume: go on with what `out` holds; what could not be judged is tried again.
        concurrency: verdicts at once.
        on_progress: told how many are done, of how many.
        host: further settings of `quintain.rollouts.Host`: backend, judge_s, ….

    Raises:
        ConfigError: no such trajectories, a folder in use, or a wrong setting.
        StoreError: there is no run.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency is at least 1, got {concurrency}")
    named = (
        dict(environment) if isinstance(environment, Mapping) else {environment.name: environment}
    )
    new = None if verifier is None else as_verifier(verifier)
    with Store.read(run) as old:
        rows = old.rows(purpose=purpose)
        if not rows:
            held = ", ".join(old.purposes()) or "none"
            raise ConfigError(f"{run} holds no trajectories of that purpose; it holds: {held}")
        name = new.name if new else "/".join(dict.fromkeys(e.verifier.name for e in named.values()))
        about = {"run": str(run), "id": old.meta("id"), "verifier": name}
        folder = Path(out) if out is not None else new_folder(f"rescore-{Path(run).name}")
        config: dict[str, Json] = {
            **(old.meta("config") or {}), **provenance(), "rescored": about
        }  # fmt: skip
        identity: dict[str, Json] = {"run": about["id"], "verifier": name, "purpose": purpose}
        with Store.begin(
            folder, kind="eval", identity=identity, config=config, resume=resume
        ) as store:
            await _Again(old, store, named, new, concurrency, on_progress, host).judge(
                [row.key for row in rows]
            )
    return Rescored(folder)


def rescore(
    run: str | Path, verifier: Verifier | Callable[..., Any] | str | None = None, **arguments: Any
) -> Rescored:
    """The same as `arescore`, for synchronous code and notebooks; it takes the same arguments."""
    return run_blocking(arescore(run, verifier, **arguments))


@dataclass(slots=True)
class _Again:
    """One pass over a run."""

    old: Store
    store: Store
    environments: dict[str, Environment]
    verifier: Verifier | None
    concurrency: int
    on_progress: Progress | None
    settings: Mapping[str, Any]
    tried: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    done: int = 0

    async def judge(self, keys: Sequence[TrajectoryKey]) -> None:
        """Those that the new run does not hold yet."""
        held = {row.key for row in self.store.rows()}
        left = [key for key in keys if key not in held]
        self.done = len(keys) - len(left)
        self.tried = _tried(self.old)
        await self._copy_plans()
        by_environment: dict[str, list[TrajectoryKey]] = {}
        for key in left:
            by_environment.setdefault(key.environment, []).append(key)
        for name, members in by_environment.items():
            environment = self.environments.get(name)
            if environment is None:
                for key in members:
                    await self._not(key, f"no environment {name!r} was given", len(keys))
                continue
            nobody = Scripted("")
            async with Host(environment, nobody, store=None, **self.settings) as host:
                queue = iter(members)
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(self.concurrency, len(members))):
                            group.create_task(self._work(queue, host, len(keys)))
                except* ConfigError as wrong:
                    raise wrong.exceptions[0] from None

    async def _copy_plans(self) -> None:
        """What was planned, so that the new run knows when it is whole."""
        known = {digest(data) for _, _, data in self.store.event_rows(BEGUN)}
        for _, _, data in self.old.event_rows(BEGUN):
            if digest(data) not in known:
                await self.store.event(BEGUN, data)

    async def _work(self, queue: Iterator[TrajectoryKey], host: Host, total: int) -> None:
        for key in queue:
            trajectory = self.old.get(key)
            tried = self.tried.get((key.purpose, key.environment), frozenset())
            kept = _Kept(self.old, trajectory, tried)
            try:
                verdict = await self._verdict(trajectory, kept, host)
            except ConfigError:
                raise
            except QuintainError as error:
                await self._not(key, kept.why_not or str(error), total)
                continue
            await self._commit(trajectory, verdict, total)

    async def _verdict(self, trajectory: Trajectory, kept: _Kept, host: Host) -> Verdict:
        error = trajectory.error
        if error is not None and error.stage != "verifier":
            raise NotJudged(f"it broke before its end ({error.stage}: {error.message})")
        environment = host.environment
        verifier = self.verifier or environment.verifier
        task: Task = environment.tasks.get(trajectory.task_id)
        context = JudgeContext(
            task=task,
            trajectory=trajectory.model_copy(
                update={"verdict": None, "outcome": None, "error": None}
            ),
            sandbox=None,
            open_sandbox=host.open_sandbox,
            workers=host.workers,
            deadline=time.monotonic() + host.judge_s,
            artifact=kept,
        )
        with boundary(VerifierError, f"verifier {verifier.name}"):
            async with asyncio.timeout(host.judge_s):
                verdict = await verifier.judge(context)
        if kept.why_not:
            raise NotJudged(kept.why_not)
        if not environment.graded and verdict.reward not in (None, 0.0, 1.0):
            raise NotJudged(
                f"verifier {verifier.name} gave reward {verdict.reward!r}; rewards are 0 or 1 "
                "unless the environment says graded=True"
            )
        return with_patterns(verdict, trajectory)

    async def _commit(self, old: Trajectory, verdict: Verdict, total: int) -> None:
        before = Event(
            kind=BEFORE,
            data={
                "outcome": str(old.outcome),
                "reward": old.reward,
                "explanation": old.verdict.explanation if old.verdict else _fault(old),
                "verifier": old.verdict.verifier if old.verdict else "",
            },
        )
        new = old.model_copy(
            update={
                "verdict": verdict,
                "outcome": verdict.outcome,
                "error": None,
                "events": (*(e for e in old.events if e.kind != BEFORE), before),
            }
        )
        blobs = {name: self.old.blob(name) for name in self._there(old)}
        await self.store.commit(new, blobs=blobs)
        self._tell(total)

    def _there(self, trajectory: Trajectory) -> set[str]:
        names = set(trajectory.artifacts.values())
        return {name for name in names if (self.old.folder / "blobs" / name).exists()}

    async def _not(self, key: TrajectoryKey, why: str, total: int) -> None:
        await self.store.event(NOT_JUDGED, {"key": list(key), "why": why})
        self._tell(total)

    def _tell(self, total: int) -> None:
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, total)


def _fault(trajectory: Trajectory) -> str:
    return "" if trajectory.error is None else trajectory.error.message


def _tried(store: Store) -> dict[tuple[str, str], frozenset[str]]:
    """Of each purpose and environment, the paths that were to be kept when it was played."""
    out: dict[tuple[str, str], frozenset[str]] = {}
    for _, _, data in store.event_rows(BEGUN):
        if "artifacts" in data:
            out[data["purpose"], data["environment"]] = frozenset(data["artifacts"])
    config = store.meta("config") or {}
    if "artifacts" in config:
        out[TRAIN, config["environment"]] = frozenset(config["artifacts"])
    return out
