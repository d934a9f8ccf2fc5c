"""The result of an eval: reads everything from the store, so that a stored run is no less.

::

    run = EvalRun.open("runs/arithmetic")
    print(run.pass_at(1), run.outcomes)
    run.failures[0].show()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO, overload

from quintain.errors import ConfigError
from quintain.record import Json
from quintain.statistics import Interval, Paired, PassK
from quintain.store import Store, TrajectoryRow
from quintain.store.scores import Scores
from quintain.trajectory import TRAIN, Trajectory, TrajectoryKey
from quintain.verdict import Outcome
from quintain.verifiers.patterns import PREFIX
from quintain.viewer.transcript import origin, print_transcript, reproduce, transcript

BEGUN, ENDED = "eval.begun", "eval.ended"
"""Events in the store: what was planned, and how it ended."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One stored sample, loaded when looked at."""

    run: EvalRun
    row: TrajectoryRow

    @property
    def key(self) -> TrajectoryKey:
        """What it is stored under."""
        return self.row.key

    @property
    def outcome(self) -> Outcome:
        """How it came out."""
        return Outcome(self.row.outcome)

    @property
    def trajectory(self) -> Trajectory:
        """All of it."""
        return self.run.store.get(self.row.key)

    @property
    def reproduce(self) -> str:
        """The command that plays it again."""
        return reproduce(self.row.key, self.run.config)

    def show(self, file: TextIO | None = None) -> None:
        """Prints conversation, verdict and the line that reproduces it."""
        print_transcript(self.trajectory, reproduce=self.reproduce, file=file)

    def __str__(self) -> str:
        return transcript(self.trajectory, reproduce=self.reproduce)

    def __repr__(self) -> str:
        return f"<Sample {self.key.task_id}:{self.key.sample_index} {self.row.outcome}>"


class Samples(Sequence[Sample]):
    """Samples of a run, each loaded when looked at."""

    def __init__(self, run: EvalRun, rows: Sequence[TrajectoryRow]) -> None:
        self._run = run
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: int | slice) -> Sample | Samples:
        if isinstance(index, slice):
            return Samples(self._run, self._rows[index])
        return Sample(self._run, self._rows[index])

    def __repr__(self) -> str:
        return f"<{len(self)} samples>"


class EvalRun:
    """The stored samples of one eval.

    Args:
        store: of the run, open in whatever way.
        purpose: which eval of it.
        environment: the environment's name.
    """

    def __init__(self, store: Store, purpose: str, environment: str) -> None:
        self.store = store
        self.purpose = purpose
        self.environment = environment

    @classmethod
    def open(
        cls, folder: str | Path, purpose: str | None = None, environment: str | None = None
    ) -> EvalRun:
        """An eval of a stored run, also while it is being written.

        Args:
            folder: of the run.
            purpose: which eval; may be left out where the run holds one only.
            environment: likewise.

        Raises:
            ConfigError: the run holds no eval, or several that fit; the message lists them.
            StoreError: there is no run.
        """
        found = [
            run
            for run in cls.all(folder)
            if purpose in (None, run.purpose) and environment in (None, run.environment)
        ]
        if len(found) == 1:
            return found[0]
        listed = "\n".join(f"  {run.purpose}  ({run.environment})" for run in cls.all(folder))
        raise ConfigError(
            f"{folder} holds {len(found)} evals that fit"
            + (f"; choose one by its purpose:\n{listed}" if listed else "")
        )

    @classmethod
    def all(cls, folder: str | Path) -> list[EvalRun]:
        """Every eval of a stored run, in the order they were begun."""
        store = Store.read(folder)
        begun = dict.fromkeys(
            (data["purpose"], data["environment"]) for _, _, data in store.event_rows(BEGUN)
        )
        stored = dict.fromkeys((row.key.purpose, row.key.environment) for row in store.rows())
        return [
            cls(store, purpose, environment)
            for purpose, environment in {**begun, **stored}
            if purpose != TRAIN
        ]

    # --- what was asked for ----------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return self.store.folder

    def _event(self, kind: str) -> Mapping[str, Json]:
        """The last event of a kind that speaks of this eval; empty when there is none."""
        for _, _, data in reversed(self.store.event_rows(kind)):
            if (data["purpose"], data["environment"]) == (self.purpose, self.environment):
                found: Mapping[str, Json] = data
                return found
        return {}

    @cached_property
    def config(self) -> Mapping[str, Json]:
        """What it was started with: policy, seed, sampling, split, samples, checkpoint, …."""
        return origin(self.store, self.purpose, self.environment)

    @property
    def planned(self) -> int | None:
        """Samples that it should have; None: not recorded. Calls with `only` plan nothing more."""
        totals = [
            int(data["planned"])
            for _, _, data in self.store.event_rows(BEGUN)
            if (data["purpose"], data["environment"]) == (self.purpose, self.environment)
            and not data.get("only")
        ]
        return max(totals, default=None)

    @property
    def stopped(self) -> str:
        """Why it ended early (a budget), in words; empty when it did not or still runs."""
        return str(self._event(ENDED).get("stopped", ""))

    # --- scores ----------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> Scores:
        """The scores of what is stored; read once, see `refresh`."""
        return Scores.of(self.store.rows(purpose=self.purpose, environment=self.environment))

    def refresh(self) -> EvalRun:
        """Reads the store again, for a run that is being written."""
        for name in ("scores", "config"):
            self.__dict__.pop(name, None)
        return self

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many samples came out in each way; every outcome is there."""
        return self.scores.outcomes

    def pass_at(
        self, k: int = 1, *, excluded_as_failures: bool = False, confidence: float = 0.95
    ) -> PassK:
        """Unbiased pass@k over tasks with an interval clustered by task.

        Args:
            k: attempts allowed; tasks with fewer judged samples are left out and counted.
            excluded_as_failures: count samples without a reward as failures.
            confidence: of the interval.
        """
        return self.scores.pass_at(
            k, excluded_as_failures=excluded_as_failures, confidence=confidence
        )

    def pass_hat(
        self, k: int, *, excluded_as_failures: bool = False, confidence: float = 0.95
    ) -> PassK:
        """pass^k: all of k attempts solve the task."""
        return self.scores.pass_hat(
            k, excluded_as_failures=excluded_as_failures, confidence=confidence
        )

    def mean(self, *, excluded_as_failures: bool = False, confidence: float = 0.95) -> Interval:
        """Mean reward with an interval clustered by task."""
        return self.scores.mean(excluded_as_failures=excluded_as_failures, confidence=confidence)

    def compare(self, other: EvalRun, *, confidence: float = 0.95) -> Paired:
        """How much better `other` is than this run, paired by task.

        Raises:
            ConfigError: they have no judged task in common.
        """
        compared = self.scores.compare(other.scores, confidence=confidence)
        if compared.tasks == 0:
            raise ConfigError(
                f"{self.purpose!r} ({self.environment}) and {other.purpose!r} "
                f"({other.environment}) have no judged task in common"
            )
        return compared

    @property
    def flagged(self) -> int:
        """Final samples whose verdict notes signs of gaming, patterns left out."""
        with self.store.query(
            "SELECT count(*) FROM trajectories WHERE purpose = ? AND environment = ? AND final = 1"
            " AND EXISTS (SELECT 1 FROM json_each(body, '$.verdict.flags')"
            " WHERE substr(value, 1, ?) != ?)",
            (self.purpose, self.environment, len(PREFIX), PREFIX),
        ) as cursor:
            return int(cursor.fetchone()[0])

    @property
    def patterns(self) -> dict[str, int]:
        """What exploits look like, and how many final samples look so (heuristic)."""
        with self.store.query(
            "SELECT substr(value, ?), count(*) AS n FROM trajectories,"
            " json_each(body, '$.verdict.flags') WHERE purpose = ? AND environment = ?"
            " AND final = 1 AND substr(value, 1, ?) = ? GROUP BY value ORDER BY n DESC, value",
            (len(PREFIX) + 1, self.purpose, self.environment, len(PREFIX), PREFIX),
        ) as cursor:
            return dict(cursor.fetchall())

    def _causes(self) -> list[str]:
        """The most frequent faults of the host, in their own words."""
        with self.store.query(
            "SELECT outcome, json_extract(body, '$.error.message'), count(*) AS n"
            " FROM trajectories WHERE purpose = ? AND environment = ? AND final = 1"
            " AND json_extract(body, '$.error') IS NOT NULL GROUP BY 1, 2 ORDER BY n DESC LIMIT 3",
            (self.purpose, self.environment),
        ) as cursor:
            return [f"{n} {outcome}: {message}" for outcome, message, n in cursor]

    @property
    def warnings(self) -> list[str]:
        """What a reader of the scores has to know."""
        out = [*self.scores.warnings, *self._causes()]
        if self.planned is not None and self.scores.samples < self.planned:
            why = f" ({self.stopped})" if self.stopped else ""
            out.append(
                f"incomplete: {self.scores.samples} of {self.planned} samples are done{why}; "
                "resume it to go on"
            )
        out.extend(self._toothless())
        if self.flagged:
            out.append(f"{self.flagged} samples are flagged as possible gaming: look at them")
        if self.patterns:
            named = ", ".join(f"{name} × {n}" for name, n in self.patterns.items())
            out.append(f"what exploits look like (heuristic; honest work may): {named}")
        return out

    def _toothless(self) -> list[str]:
        """Budgets that could not stop anything, because nothing was ever counted against them."""
        begun = self._event(BEGUN)
        given = [name for name in ("max_cost_usd", "max_tokens") if begun.get(name) is not None]
        if not given or not self.scores.samples:
            return []
        cost_usd, tokens = spent(self.store, self.purpose, self.environment)
        told = {
            "max_cost_usd": (cost_usd, "no cost was counted; give the policy its prices"),
            "max_tokens": (tokens, "the policy reported no tokens"),
        }
        return [
            f"{name}={begun[name]:g} could stop nothing: {told[name][1]}"
            for name in given
            if not told[name][0]
        ]

    # --- samples ---------------------------------------------------------------------------------

    def samples(self, *outcomes: Outcome) -> Samples:
        """The final samples with one of the outcomes; all when none is named."""
        wanted = {str(outcome) for outcome in outcomes or tuple(Outcome)}
        return Samples(self, [row for row in self.scores.rows if row.outcome in wanted])

    @property
    def failures(self) -> Samples:
        """What the candidate failed."""
        return self.samples(Outcome.FAILED)

    @property
    def successes(self) -> Samples:
        """What it solved."""
        return self.samples(Outcome.SOLVED)

    @property
    def errors(self) -> Samples:
        """What the host broke."""
        return self.samples(*(outcome for outcome in Outcome if outcome.host_fault))

    def trajectories(self) -> Iterator[Trajectory]:
        """The final trajectories, one at a time."""
        return self.store.trajectories(purpose=self.purpose, environment=self.environment)

    # --- in words --------------------------------------------------------------------------------

    def summary(self) -> dict[str, Json]:
        """The scores as JSON."""
        scores = self.scores
        per_task = [n for n, _ in scores.counts().values()]
        ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if per_task and k <= max(per_task)]
        return {
            "folder": str(self.folder),
            "purpose": self.purpose,
            "environment": self.environment,
            "policy": self.config.get("policy"),
            "samples": scores.samples,
            "planned": self.planned,
            "tasks": scores.tasks,
            "outcomes": {str(outcome): n for outcome, n in scores.outcomes.items()},
            "excluded": scores.excluded,
            "pass_at": {str(k): _interval(self.pass_at(k)) for k in ks},
            "pass_at_with_excluded_as_failures": {
                str(k): _interval(self.pass_at(k, excluded_as_failures=True)) for k in ks
            },
            "mean": _plain(self.mean()),
            "cost_usd": scores.cost_usd,
            "stopped": self.stopped,
            "warnings": self.warnings,
        }

    def __str__(self) -> str:
        scores = self.scores
        counted = ", ".join(f"{n} {outcome}" for outcome, n in self.outcomes.items() if n)
        most = max((n for n, _ in scores.counts().values()), default=1)
        lines = [
            f"{self.environment} · {self.purpose}: {scores.samples} samples, {scores.tasks} tasks",
            *(
                f"  pass@{k} {self.pass_at(k)}\n"
                f"  pass@{k} {self.pass_at(k, excluded_as_failures=True)} "
                f"with {scores.excluded} excluded as failures"
                for k in sorted({1, max(most, 1)})
            ),
            *((f"  mean reward {self.mean()}",) if scores.graded else ()),
            f"  {counted or 'no sample yet'}",
            *(f"  warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<EvalRun {self.environment} {self.purpose!r} {self.scores.samples} samples>"


def spent(store: Store, purpose: str, environment: str) -> tuple[float, int]:
    """USD and sampled tokens of an eval so far, every attempt of it."""
    with store.query(
        "SELECT total(cost_usd), total(json_extract(body, '$.usage.completion_tokens'))"
        " FROM trajectories WHERE purpose = ? AND environment = ?",
        (purpose, environment),
    ) as cursor:
        cost_usd, tokens = cursor.fetchone()
    return cost_usd, int(tokens)


def _plain(interval: Interval) -> Json:
    number = interval.value
    return {
        "value": None if number != number else number,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "tasks": interval.n,
        "method": interval.method,
    }


def _interval(estimate: PassK) -> Json:
    return {**_plain(estimate.interval), "skipped": estimate.skipped}
