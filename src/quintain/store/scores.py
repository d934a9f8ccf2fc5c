"""What the index of a run says about one eval: outcomes, pass@k, mean, comparison with another.

Only solved and failed samples count in a score. What the host caused (and what the verifier could
not decide) is left out and counted, and every score has a counterpart in which the left-out samples
count as failures: where the two differ widely, the score stands on what happened to run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quintain.statistics import (
    Interval,
    Paired,
    PassK,
    clustered_mean,
    paired,
    pass_at_k,
    pass_hat_k,
)
from quintain.store.rows import TrajectoryRow
from quintain.verdict import Outcome

WIDE_GAP = 0.02
"""Difference of the two ways to count that is worth a warning."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The final attempts of one purpose and environment."""

    rows: tuple[TrajectoryRow, ...]

    @classmethod
    def of(cls, rows: Iterable[TrajectoryRow]) -> Scores:
        """Of rows as the store gives them; attempts that are not final are dropped."""
        return cls(tuple(row for row in rows if row.final))

    @property
    def samples(self) -> int:
        """Samples in all, however they came out."""
        return len(self.rows)

    @property
    def tasks(self) -> int:
        """Tasks with at least one sample, however it came out."""
        return len({row.key.task_id for row in self.rows})

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many samples came out in each way; every outcome is there."""
        out = dict.fromkeys(Outcome, 0)
        for row in self.rows:
            out[Outcome(row.outcome)] += 1
        return out

    @property
    def excluded(self) -> int:
        """Samples without a reward: faults of the host, and abstentions."""
        return sum(not Outcome(row.outcome).judged for row in self.rows)

    @property
    def cost_usd(self) -> float:
        """What the final attempts cost."""
        return sum(row.cost_usd for row in self.rows)

    @property
    def graded(self) -> bool:
        """Whether some reward is neither 0 nor 1."""
        return any(row.reward not in (None, 0.0, 1.0) for row in self.rows)

    def counts(self, *, excluded_as_failures: bool = False) -> dict[str, tuple[int, int]]:
        """(samples, solved) of each task; a task without judged samples has (0, 0)."""
        out: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            outcome = Outcome(row.outcome)
            n, c = out.get(row.key.task_id, (0, 0))
            n += outcome.judged or excluded_as_failures
            out[row.key.task_id] = (n, c + (outcome is Outcome.SOLVED))
        return out

    def rewards(self, *, excluded_as_failures: bool = False) -> dict[str, list[float]]:
        """The rewards of each task, by sample; a task without any has an empty list."""
        out: dict[str, list[float]] = {}
        for row in self.rows:
            values = out.setdefault(row.key.task_id, [])
            if Outcome(row.outcome).judged and row.reward is not None:
                values.append(row.reward)
            elif excluded_as_failures:
                values.append(0.0)
        return out

    def pass_at(
        self, k: int = 1, *, excluded_as_failures: bool = False, confidence: float = 0.95
    ) -> PassK:
        """Unbiased pass@k with an interval clustered by task."""
        counts = self.counts(excluded_as_failures=excluded_as_failures)
        return pass_at_k(counts.values(), k, confidence)

    def pass_hat(
        self, k: int, *, excluded_as_failures: bool = False, confidence: float = 0.95
    ) -> PassK:
        """pass^k, all of k attempts solve the task, with an interval clustered by task."""
        counts = self.counts(excluded_as_failures=excluded_as_failures)
        return pass_hat_k(counts.values(), k, confidence)

    def mean(self, *, excluded_as_failures: bool = False, confidence: float = 0.95) -> Interval:
        """Mean reward with an interval clustered by task."""
        rewards = self.rewards(excluded_as_failures=excluded_as_failures)
        return clustered_mean(rewards, confidence, bounds=(0.0, 1.0))

    def compare(self, other: Scores, *, confidence: float = 0.95) -> Paired:
        """How much better `other` is than this, task by task, on the rewards both have."""
        return paired(self.rewards(), other.rewards(), confidence)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the score has to know."""
        out: list[str] = []
        if not self.rows:
            return ["no sample was run"]
        judged = self.samples - self.excluded
        if judged == 0:
            return [f"none of {self.samples} samples was judged: {_named(self.outcomes)}"]
        plain = self.pass_at(1).value
        strict = self.pass_at(1, excluded_as_failures=True).value
        if plain - strict > WIDE_GAP:
            out.append(
                f"{self.excluded} of {self.samples} samples left out ({_named(self.outcomes)}): "
                f"pass@1 is {plain:.3f} without them and {strict:.3f} with them as failures"
            )
        unjudged = sum(n == 0 for n, _ in self.counts().values())
        if unjudged:
            out.append(f"{unjudged} of {self.tasks} tasks have no judged sample")
        return out


def _named(outcomes: dict[Outcome, int]) -> str:
    return ", ".join(f"{n} {o}" for o, n in outcomes.items() if n and not o.judged)
