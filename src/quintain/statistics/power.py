"""How many tasks a comparison needs, and what it can see with those there are."""

from __future__ import annotations

import math
from statistics import NormalDist

from quintain.statistics.distributions import normal_quantile


def _paired_sd(between_sd: float, within_sd: float, samples: int) -> float:
    """sd of one task's difference: sqrt(w^2 + 2 s^2/K) (Miller 2024, section 5)."""
    if samples < 1 or between_sd < 0 or within_sd < 0:
        raise ValueError(
            "expected samples >= 1 and standard deviations >= 0, got "
            f"samples={samples}, between_sd={between_sd}, within_sd={within_sd}"
        )
    return math.sqrt(between_sd**2 + 2 * within_sd**2 / samples)


def tasks_needed(
    effect: float,
    *,
    between_sd: float,
    within_sd: float,
    samples: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int:
    """Tasks that a paired comparison needs to see a difference of `effect` (Miller 2024, eq. 9).

    n = (z_{alpha/2} + z_power)^2 (w^2 + 2 s^2/K) / effect^2, at least 2.

    Args:
        effect: difference of the means that should be noticed, not 0.
        between_sd: w, sd over tasks of the true difference of the two policies.
        within_sd: s, sd of one sample around its task's mean (0.5 at most for binary rewards).
        samples: K, samples of each task and run.
        alpha: two-sided false-positive rate.
        power: probability of noticing.
    """
    if effect == 0:
        raise ValueError("an effect of 0 can never be noticed")
    z = normal_quantile(1 - alpha / 2) + normal_quantile(power)
    sd = _paired_sd(between_sd, within_sd, samples)
    return max(2, math.ceil((z * sd / effect) ** 2))


def detectable_effect(
    tasks: int,
    *,
    between_sd: float,
    within_sd: float,
    samples: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """The least difference that a paired comparison notices: see `tasks_needed`."""
    if tasks < 1:
        raise ValueError(f"expected at least one task, got {tasks}")
    z = normal_quantile(1 - alpha / 2) + normal_quantile(power)
    return z * _paired_sd(between_sd, within_sd, samples) / math.sqrt(tasks)


def paired_power(
    effect: float,
    tasks: int,
    *,
    between_sd: float,
    within_sd: float,
    samples: int = 1,
    alpha: float = 0.05,
) -> float:
    """The probability that a paired comparison notices `effect`, in the right direction."""
    if tasks < 1:
        raise ValueError(f"expected at least one task, got {tasks}")
    sd = _paired_sd(between_sd, within_sd, samples)
    if sd == 0:
        return 1.0 if effect else alpha / 2
    shift = abs(effect) * math.sqrt(tasks) / sd
    return NormalDist().cdf(shift - normal_quantile(1 - alpha / 2))
