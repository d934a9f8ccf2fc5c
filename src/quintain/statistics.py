"""Estimates with honest intervals: pass@k, means clustered by task, paired comparisons, power.

The unit of evidence is the task, never the sample: two samples of one task share its difficulty,
so intervals come from the spread *between tasks* (Miller 2024, arXiv 2411.00640, sections 2 to 5).
With few tasks the normal quantile is too small, so Student's t with (tasks - 1) degrees of freedom
is used. Where all tasks agree a t interval would have width 0 and claim certainty; an exact bound
on what the unseen tasks may do takes its place.

Pure: numbers in, numbers out; numpy and the standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, TypeVar

import numpy as np

Bounds = tuple[float, float]
K = TypeVar("K", bound=Hashable)


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


# --- Student's t and the beta distribution ------------------------------------------------------


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation of the continued fraction of the incomplete beta (DLMF 8.17.22)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    total = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + step * d
            c = 1.0 + step / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            factor = c * d
            total *= factor
        if abs(factor - 1.0) < 1e-15:
            break
    return total


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta I_x(a, b) for 0 <= x <= 1 and a, b > 0 (DLMF 8.17)."""
    if not (a > 0 and b > 0):
        raise ValueError(f"a and b are positive, got {a} and {b}")
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    front = math.exp(log_front)
    # The fraction converges fast only on this side of the mean.
    if x < (a + 1.0) / (a + b + 2.0):
        return min(1.0, front * _beta_fraction(a, b, x) / a)
    return max(0.0, 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b)


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = p, by bisection to the last bit of a double."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if beta_cdf(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t: I_{df/(df+t^2)}(df/2, 1/2) / 2 for t >= 0 (DLMF 8.17)."""
    if not df > 0:
        raise ValueError(f"degrees of freedom are positive, got {df}")
    if t < 0:
        return 1.0 - t_tail(-t, df)
    if math.isinf(t):
        return 0.0
    if t * t < df:  # the form that keeps its digits near t = 0
        return 0.5 - beta_cdf(t * t / (df + t * t), 0.5, df / 2) / 2
    return beta_cdf(df / (df + t * t), df / 2, 0.5) / 2


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1 and df > 0 degrees of freedom."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"p is in (0, 1), got {p}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    tail = 1.0 - p
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_tail(middle, df) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def normal_quantile(p: float) -> float:
    """The z with P(Z <= z) = p."""
    return NormalDist().inv_cdf(p)


# --- proportions of independent trials ----------------------------------------------------------


def _check_counts(successes: int, n: int) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got {successes} of {n}")


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is in (0, 1), got {confidence}")


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion of n independent trials.

    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)  (Wilson 1927; Brown, Cai and
    DasGupta 2001). With n = 0 the value is NaN and the interval [0, 1].
    """
    _check_counts(successes, n)
    _check_confidence(confidence)
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
    _check_counts(successes, n)
    _check_confidence(confidence)
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
    _check_counts(successes, n)
    _check_confidence(confidence)
    if successes == n:
        return 1.0
    if successes == 0:
        return -math.expm1(math.log1p(-confidence) / n)
    return beta_quantile(confidence, successes + 1, n - successes)


def trials_for_bound(bound: float, confidence: float = 0.95) -> int:
    """How many trials without a success are needed to say, at `confidence`, "below `bound`"."""
    _check_confidence(confidence)
    if not 0.0 < bound < 1.0:
        raise ValueError(f"the bound is in (0, 1), got {bound}")
    return math.ceil(math.log1p(-confidence) / math.log1p(-bound))


# --- means clustered by task --------------------------------------------------------------------


def _t_interval(
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


def _task_means(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the values and its standard error, sd / sqrt(n) (0 when n < 2)."""
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2 or bool(np.all(array == array[0])):
        return float(array[0]) if array.size else math.nan, 0.0
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
    _check_confidence(confidence)
    kept = [np.asarray(v, dtype=np.float64) for v in values.values() if len(v)]
    tasks = len(kept)
    if tasks == 0:
        low, high = bounds if bounds is not None else (-math.inf, math.inf)
        return Interval(math.nan, low, high, confidence, 0, "none")
    if weighting == "tasks":
        value, error = _task_means([float(v.mean()) for v in kept])
        return _t_interval(value, error, tasks, confidence, bounds)
    everything = np.concatenate(kept)
    value = float(everything.mean())
    if bool(np.all(everything == everything[0])):
        value = float(everything[0])
    residuals = np.array([float((v - value).sum()) for v in kept])
    variance = 0.0
    if tasks > 1:
        variance = tasks / (tasks - 1) * float((residuals**2).sum()) / everything.size**2
    return _t_interval(value, math.sqrt(variance), tasks, confidence, bounds)


# --- pass@k and pass^k --------------------------------------------------------------------------


def pass_at_k_of_task(n: int, c: int, k: int) -> float | None:
    """Unbiased pass@k of one task: 1 - C(n-c, k)/C(n, k); None when n < k.

    In product form, 1 - prod_{i=n-c+1..n} (1 - k/i), which does not overflow (Chen et al. 2021,
    arXiv 2107.03374, section 2.1).

    Args:
        n: samples of the task.
        c: of which solved.
        k: attempts allowed.
    """
    _check_counts(c, n)
    if k < 1:
        raise ValueError(f"k is at least 1, got {k}")
    if n < k:
        return None
    if n - c < k:
        return 1.0
    miss = 1.0
    for i in range(n - c + 1, n + 1):
        miss *= 1.0 - k / i
    return 1.0 - miss


def pass_hat_k_of_task(n: int, c: int, k: int) -> float | None:
    """Unbiased pass^k of one task, all of k attempts solve it: C(c, k)/C(n, k); None when n < k.

    (Yao et al. 2024, tau-bench, arXiv 2406.12045, section 3.)
    """
    _check_counts(c, n)
    if k < 1:
        raise ValueError(f"k is at least 1, got {k}")
    if n < k:
        return None
    out = 1.0
    for i in range(k):
        out *= max(0, c - i) / (n - i)
    return out


@dataclass(frozen=True, slots=True)
class PassK:
    """pass@k or pass^k over tasks."""

    k: int
    interval: Interval
    tasks: int
    """Tasks with at least k samples: the mean is over these."""
    skipped: int
    """Tasks with fewer than k samples (none at all included): they say nothing about k attempts."""

    @property
    def value(self) -> float:
        """The mean over tasks; NaN when no task has k samples."""
        return self.interval.value

    def __str__(self) -> str:
        tail = f", {self.skipped} with fewer than {self.k} samples left out" if self.skipped else ""
        return f"{self.interval} ({self.tasks} tasks{tail})"


def _over_tasks(per_task: Sequence[float | None], k: int, confidence: float) -> PassK:
    _check_confidence(confidence)
    kept = [value for value in per_task if value is not None]
    value, error = _task_means(kept)
    interval = _t_interval(value, error, len(kept), confidence, (0.0, 1.0))
    return PassK(k, interval, len(kept), len(per_task) - len(kept))


def pass_at_k(counts: Iterable[tuple[int, int]], k: int, confidence: float = 0.95) -> PassK:
    """The mean over tasks of the unbiased pass@k, with an interval clustered by task.

    Args:
        counts: (samples n, solved c) of each task.
        k: attempts allowed.
        confidence: of the two-sided interval.
    """
    return _over_tasks([pass_at_k_of_task(n, c, k) for n, c in counts], k, confidence)


def pass_hat_k(counts: Iterable[tuple[int, int]], k: int, confidence: float = 0.95) -> PassK:
    """The mean over tasks of pass^k (all of k attempts solve it), clustered by task."""
    return _over_tasks([pass_hat_k_of_task(n, c, k) for n, c in counts], k, confidence)


# --- comparing two runs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paired:
    """How run B differs from run A on the tasks that both have."""

    difference: Interval
    """Mean over tasks of (mean of B - mean of A), with a paired interval."""
    mean_a: float
    """Over the shared tasks."""
    mean_b: float
    p_permutation: float
    """Two-sided p-value of the sign-flip permutation test."""
    p_sign: float
    """Two-sided p-value of the exact sign test; ties are left out."""
    better: int
    """Tasks on which B is higher."""
    worse: int
    tied: int
    only_a: int
    """Tasks that only A has: left out of everything here."""
    only_b: int

    @property
    def tasks(self) -> int:
        """Tasks that both have."""
        return self.better + self.worse + self.tied

    def __str__(self) -> str:
        d = self.difference
        return (
            f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}] "
            f"({self.mean_a:.3f} -> {self.mean_b:.3f}, {self.tasks} tasks: {self.better} better, "
            f"{self.worse} worse, {self.tied} tied; permutation p = {self.p_permutation:.3g})"
        )


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value that better and worse are equally likely: binomial(n, 1/2)."""
    n = better + worse
    if n == 0:
        return 1.0
    small = min(better, worse)
    # Integers to the end: exact for any n.
    return min(1.0, float(2 * sum(math.comb(n, i) for i in range(small + 1)) / 2**n))


def sign_flip_test(
    differences: Sequence[float], *, permutations: int = 20_000, seed: int = 0
) -> float:
    """Two-sided p-value of "each difference is as likely as its negative" (Fisher 1935).

    All 2^m sign flips of the m nonzero differences where that is no more than `permutations`; else
    that many random ones, p = (1 + hits)/(1 + permutations) (Phipson and Smyth 2010), which is
    never 0.
    """
    values = np.array([d for d in differences if d != 0.0], dtype=np.float64)
    m = values.size
    if m == 0:
        return 1.0
    observed = abs(float(values.sum()))
    slack = 1e-9 * float(np.abs(values).sum())  # equal sums in another order differ by rounding
    if 2**m <= permutations:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate([sums - value, sums + value])
        return float((np.abs(sums) >= observed - slack).mean())
    generator = np.random.default_rng(seed)
    hits, done, chunk = 0, 0, max(1, 2_000_000 // m)
    while done < permutations:
        size = min(chunk, permutations - done)
        signs = generator.integers(0, 2, size=(size, m), dtype=np.int8).astype(np.float64) * 2 - 1
        hits += int((np.abs(signs @ values) >= observed - slack).sum())
        done += size
    return (1 + hits) / (1 + permutations)


def paired(
    a: Mapping[K, Sequence[float]],
    b: Mapping[K, Sequence[float]],
    confidence: float = 0.95,
    *,
    bounds: Bounds | None = (0.0, 1.0),
    permutations: int = 20_000,
    seed: int = 0,
) -> Paired:
    """Compares two runs task by task: d_g = mean of B's samples - mean of A's, over shared tasks.

    The interval is mean(d) +- t(G-1) sd(d)/sqrt(G) (Miller 2024, section 4.2): pairing takes the
    tasks' difficulty out, and the number of samples a task has in either run may differ.

    Args:
        a: samples of each task in run A; a task without samples counts as absent.
        b: the same of run B.
        confidence: of the two-sided interval.
        bounds: where the samples must lie, as rewards do in [0, 1]; None: anywhere.
        permutations: of the permutation test, where it is not exact.
        seed: of the permutation test.
    """
    _check_confidence(confidence)
    have_a = {task for task, values in a.items() if len(values)}
    have_b = {task for task, values in b.items() if len(values)}
    shared = [task for task in a if task in have_a and task in have_b]
    means_a = [float(np.mean(a[task])) for task in shared]
    means_b = [float(np.mean(b[task])) for task in shared]
    # Means of the same multiset in another order differ by rounding: that is a tie.
    differences = [
        0.0 if math.isclose(x, y, rel_tol=1e-12, abs_tol=1e-15) else y - x
        for x, y in zip(means_a, means_b, strict=True)
    ]
    value, error = _task_means(differences)
    spread = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    better = sum(d > 0 for d in differences)
    worse = sum(d < 0 for d in differences)
    return Paired(
        difference=_t_interval(value, error, len(shared), confidence, spread),
        mean_a=float(np.mean(means_a)) if shared else math.nan,
        mean_b=float(np.mean(means_b)) if shared else math.nan,
        p_permutation=sign_flip_test(differences, permutations=permutations, seed=seed),
        p_sign=sign_test(better, worse),
        better=better,
        worse=worse,
        tied=len(shared) - better - worse,
        only_a=len(have_a) - len(shared),
        only_b=len(have_b) - len(shared),
    )


# --- how many tasks -----------------------------------------------------------------------------


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
