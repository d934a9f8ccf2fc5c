"""Proportions of independent trials: Wilson, Clopper-Pearson, and "0 of n" bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quintain.statistics.distributions import beta_quantile, normal_quantile


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float
    n: int
    """Independent units behind it: tasks where it is clustered, trials where it is binomial."""
    method: str
    """How the bounds were made: "wilson", "clopper-pearson", "t", "no-spread" (all units agree)
    or "none" (too few units to say)."""

    @property
    def half_width(self) -> float:
        """Half the distance between the bounds."""
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        """Whether the value lies outside the interval."""
        return value < self.low or value > self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def check_counts(successes: int, n: int) -> None:
    """Refuses counts that cannot be."""
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got {successes} of {n}")


def check_confidence(confidence: float) -> None:
    """Refuses a confidence outside (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is in (0, 1), got {confidence}")


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion of n independent trials.

    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)  (Wilson 1927; Brown, Cai and
    DasGupta 2001). With n = 0 the value is NaN and the interval [0, 1].
    """
    check_counts(successes, n)
    check_confidence(confidence)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, confidence, 0, "none")
    z = normal_quantile((1 + confidence) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(p, low, high, confidence, n, "wilson")


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The exact two-sided interval of a proportion (Clopper and Pearson 1934): beta quantiles."""
    check_counts(successes, n)
    check_confidence(confidence)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, confidence, 0, "none")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else beta_quantile(tail, successes, n - successes + 1)
    high = 1.0 if successes == n else beta_quantile(1 - tail, successes + 1, n - successes)
    return Interval(successes / n, low, high, confidence, n, "clopper-pearson")


def upper_bound(successes: int, n: int, confidence: float = 0.95) -> float:
    """The one-sided exact upper bound: at `confidence`, the true rate is not above it.

    For 0 of n this is 1 - (1 - confidence)^(1/n), near 3/n at 95 % (the rule of three; Hanley and
    Lippman-Hand 1983). With n = 0 it is 1.
    """
    check_counts(successes, n)
    check_confidence(confidence)
    if successes == n:
        return 1.0
    if successes == 0:
        return -math.expm1(math.log1p(-confidence) / n)
    return beta_quantile(confidence, successes + 1, n - successes)


def trials_for_bound(bound: float, confidence: float = 0.95) -> int:
    """How many trials without a success are needed to say, at `confidence`, "below `bound`"."""
    check_confidence(confidence)
    if not 0.0 < bound < 1.0:
        raise ValueError(f"the bound is in (0, 1), got {bound}")
    return math.ceil(math.log1p(-confidence) / math.log1p(-bound))
