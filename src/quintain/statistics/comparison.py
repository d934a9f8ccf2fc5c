"""Two runs compared task by task: paired interval, sign-flip and sign tests."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from quintain.statistics.clustered import Bounds, mean_and_error, t_interval
from quintain.statistics.proportions import Interval, check_confidence

K = TypeVar("K", bound=Hashable)


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
    check_confidence(confidence)
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
    value, error = mean_and_error(differences)
    spread = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    better = sum(d > 0 for d in differences)
    worse = sum(d < 0 for d in differences)
    return Paired(
        difference=t_interval(value, error, len(shared), confidence, spread),
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
