"""Which checkpoint to ship: strict Pareto dominance over evals, then one deterministic choice.

A checkpoint is out when another is at least as good in every eval and better in one. Equal ones
stay in together: neither is better than the other. What remains is a front, and only one can be
deployed, so the front's best mean over evals is picked, among equals the least trained. An eval
without a score is an error, never a zero: what was not measured can't be compared.

This chooses on measured means and is thus optimistic about the winner; that is why the held-out
split is evaluated once, afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quintain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Candidate:
    """An evaluated checkpoint."""

    step: int
    version: int
    scores: Mapping[str, float]
    """Mean reward by eval, higher is better."""

    @property
    def mean(self) -> float:
        """Over evals, each with the same weight."""
        return sum(self.scores.values()) / len(self.scores)


def dominates(one: Candidate, other: Candidate) -> bool:
    """Whether `one` is at least as good in every eval and better in at least one."""
    pairs = [(one.scores[name], other.scores[name]) for name in one.scores]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other dominates, by step; never empty.

    Raises:
        ConfigError: no candidate, or one that lacks a score; it is named.
    """
    _comparable(candidates)
    return sorted(
        (
            candidate
            for candidate in candidates
            if not any(dominates(other, candidate) for other in candidates)
        ),
        key=lambda candidate: candidate.step,
    )


def pick(candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
    """The one to ship, and why, in a sentence.

    Raises:
        ConfigError: see `pareto_front`.
    """
    front = pareto_front(candidates)
    best = max(front, key=lambda candidate: (candidate.mean, -candidate.step))
    scores = ", ".join(f"{name} {score:.3f}" for name, score in best.scores.items())
    if len(front) == 1:
        why = f"it dominates the other {len(candidates) - 1} checkpoints"
    else:
        equals = sum(candidate.mean == best.mean for candidate in front)
        why = f"of the {len(front)} that none dominates it has the best mean"
        if equals > 1:
            why += f", and of the {equals} with that mean it is the least trained"
    return best, f"step {best.step} ({scores}): {why}"


def _comparable(candidates: Sequence[Candidate]) -> None:
    if not candidates:
        raise ConfigError("there is no evaluated checkpoint to choose from")
    names = set(candidates[0].scores)
    if not names:
        raise ConfigError("a checkpoint can only be chosen by at least one eval")
    for candidate in candidates:
        if set(candidate.scores) != names:
            raise ConfigError(
                f"the checkpoint of step {candidate.step} has scores for "
                f"{sorted(candidate.scores)}, the first one for {sorted(names)}"
            )
        for name, score in candidate.scores.items():
            if math.isnan(score):
                raise ConfigError(
                    f"the checkpoint of step {candidate.step} has no score in {name!r}: "
                    "none of its samples was judged"
                )
