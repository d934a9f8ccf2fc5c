"""Means whose intervals are clustered by task: the task is the unit of evidence."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from quintain.statistics.distributions import t_quantile
from quintain.statistics.proportions import Interval, check_confidence, upper_bound

Bounds = tuple[float, float]
K = TypeVar("K", bound=Hashable)


def t_interval(
    value: float, error: float, units: int, confidence: float, bounds: Bounds | None
) -> Interval:
    """value +- t(units - 1) * error, clipped to the bounds.

    Where all units agree the spread says nothing of the units not seen. Then, with u the one-sided
    upper bound of "0 of `units` differ" at (1 + confidence)/2, the mean lies within
    (1 - u) * value + u * bounds; at a value of 0 or 1 this is Clopper and Pearson's interval.
    """
    low, high = bounds if bounds is not None else (-math.inf, math.inf)
    if units < 2:
        return Interval(value, low, high, confidence, units, "none")
    if error == 0.0 and bounds is not None:
        unseen = upper_bound(0, units, (1 + confidence) / 2)
        return Interval(
            value,
            (1 - unseen) * value + unseen * low,
            (1 - unseen) * value + unseen * high,
            confidence,
            units,
            "no-spread",
        )
    half = t_quantile((1 + confidence) / 2, units - 1) * error
    return Interval(value, max(low, value - half), min(high, value + half), confidence, units, "t")


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the values and its standard error, sd / sqrt(n); 0 where they agree, or n < 2."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return math.nan, 0.0
    # Equal means of samples in another order differ by rounding: that is no spread.
    if array.size < 2 or float(np.ptp(array)) <= 1e-12 * max(1.0, float(np.abs(array).max())):
        return float(array[0]), 0.0
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(array.size))


def group_by_task(values: Iterable[float], tasks: Iterable[K]) -> dict[K, list[float]]:
    """Values by task, tasks in order of first appearance."""
    out: dict[K, list[float]] = {}
    for value, task in zip(values, tasks, strict=True):
        out.setdefault(task, []).append(value)
    return out


def clustered_mean(
    values: Mapping[K, Sequence[float]],
    confidence: float = 0.95,
    *,
    weighting: Literal["tasks", "samples"] = "tasks",
    bounds: Bounds | None = None,
) -> Interval:
    """The mean over tasks with an interval clustered by task.

    With weights by task (each task counts once, so that it equals pass@1 on binary rewards):
    value = mean of task means m_g, SE = sd(m_g)/sqrt(G). With weights by sample: value = mean of
    all N samples, SE^2 = G/(G-1) * sum_g (sum_i (x_gi - value))^2 / N^2, the cluster-robust CR1
    estimator (Liang and Zeger 1986; Miller 2024, eq. 4). Both with t(G - 1). Equal group sizes
    give the same answer both ways.

    Args:
        values: samples of each task; a task without samples is left out.
        confidence: of the two-sided interval.
        weighting: what counts once.
        bounds: where values must lie; the interval is clipped to it. Give (0, 1) for rewards.

    Returns:
        The interval with n = tasks; with one task the bounds are as wide as can be.
    """
    check_confidence(confidence)
    kept = [np.asarray(v, dtype=np.float64) for v in values.values() if len(v)]
    tasks = len(kept)
    if tasks == 0:
        low, high = bounds if bounds is not None else (-math.inf, math.inf)
        return Interval(math.nan, low, high, confidence, 0, "none")
    if weighting == "tasks":
        value, error = mean_and_error([float(v.mean()) for v in kept])
        return t_interval(value, error, tasks, confidence, bounds)
    everything = np.concatenate(kept)
    value = float(everything.mean())
    if bool(np.all(everything == everything[0])):
        value = float(everything[0])
    residuals = np.array([float((v - value).sum()) for v in kept])
    variance = 0.0
    if tasks > 1:
        variance = tasks / (tasks - 1) * float((residuals**2).sum()) / everything.size**2
    return t_interval(value, math.sqrt(variance), tasks, confidence, bounds)
