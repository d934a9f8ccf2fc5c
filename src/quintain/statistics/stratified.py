"""Error rates of a judge from a stratified sample of its verdicts, with exact, cautious bounds.

Each stratum of verdicts has its own sampling share, so the strata are weighted by their sizes,
never by how many were looked at. Every stratum gets a Clopper-Pearson interval at
confidence^(1/strata); the samples are independent, so all of them hold together at `confidence`,
and what rises with each of them is bounded by putting in all lower, or all upper, ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quintain.statistics.proportions import Interval, check_confidence, clopper_pearson


@dataclass(frozen=True, slots=True)
class Stratum:
    """A part of the verdicts, and what a random sample of it showed."""

    passed: bool
    """What these verdicts say."""
    size: int
    """Verdicts in it."""
    wrong: int
    """Of those looked at, the wrong ones."""
    right: int
    unsure: int = 0
    """Looked at without a decision: counted as right below, as wrong above."""

    @property
    def looked_at(self) -> int:
        """How many were labelled, one way or another."""
        return self.wrong + self.right + self.unsure


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """How often a judge errs, in the proportions in which its verdicts came about."""

    false_positive: Interval
    """Of what deserved to fail, the share that passed."""
    false_negative: Interval
    """Of what deserved to pass, the share that failed."""
    wrong_passes: Interval
    """Of what passed, the share that did not deserve it."""
    wrong_failures: Interval
    """Of what failed, the share that deserved to pass."""


def error_rates(strata: Sequence[Stratum], confidence: float = 0.95) -> ErrorRates:
    """The four rates. Each interval holds at the confidence, and so do all four together.

    A rate whose strata were not looked at is NaN, with the bounds that the others leave it.
    """
    check_confidence(confidence)
    filled = [stratum for stratum in strata if stratum.size]
    each = confidence ** (1 / max(1, len(filled)))
    points = [_point(stratum) for stratum in filled]
    bounds = [_bounds(stratum, each) for stratum in filled]
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]

    def rate(function: Callable[[float, float, float, float], float], *passed: bool) -> Interval:
        def at(shares: Sequence[float]) -> float:
            return function(*_counts(filled, shares))

        told = [stratum for stratum in filled if stratum.passed in passed]
        n = sum(stratum.wrong + stratum.right for stratum in told)
        low, high = at(lows), at(highs)
        return Interval(
            at(points), 0.0 if math.isnan(low) else low, 1.0 if math.isnan(high) else high,
            confidence, n, "stratified clopper-pearson" if n else "none",
        )  # fmt: skip

    return ErrorRates(
        false_positive=rate(lambda wp, rp, wf, rf: _share(wp, rf), True, False),
        false_negative=rate(lambda wp, rp, wf, rf: _share(wf, rp), True, False),
        wrong_passes=rate(lambda wp, rp, wf, rf: _share(wp, rp), True),
        wrong_failures=rate(lambda wp, rp, wf, rf: _share(wf, rf), False),
    )


def _point(stratum: Stratum) -> float:
    decided = stratum.wrong + stratum.right
    return stratum.wrong / decided if decided else math.nan


def _bounds(stratum: Stratum, confidence: float) -> tuple[float, float]:
    n = stratum.looked_at
    low = clopper_pearson(stratum.wrong, n, confidence).low
    return low, clopper_pearson(stratum.wrong + stratum.unsure, n, confidence).high


def _counts(
    strata: Sequence[Stratum], shares: Sequence[float]
) -> tuple[float, float, float, float]:
    """Wrong and right passes, wrong and right failures, at these shares of wrong ones."""
    out = dict.fromkeys([(True, True), (True, False), (False, True), (False, False)], 0.0)
    for stratum, share in zip(strata, shares, strict=True):
        out[stratum.passed, True] += stratum.size * share
        out[stratum.passed, False] += stratum.size * (1 - share)
    return out[True, True], out[True, False], out[False, True], out[False, False]


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else math.nan
