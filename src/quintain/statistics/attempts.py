"""pass@k and pass^k: what k attempts at a task are worth, from n samples of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quintain.statistics.clustered import mean_and_error, t_interval
from quintain.statistics.proportions import Interval, check_confidence, check_counts


def pass_at_k_of_task(n: int, c: int, k: int) -> float | None:
    """Unbiased pass@k of one task: 1 - C(n-c, k)/C(n, k); None when n < k.

    In product form, 1 - prod_{i=n-c+1..n} (1 - k/i), which does not overflow (Chen et al. 2021,
    arXiv 2107.03374, section 2.1).

    Args:
        n: samples of the task.
        c: of which solved.
        k: attempts allowed.
    """
    check_counts(c, n)
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
    check_counts(c, n)
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
    check_confidence(confidence)
    kept = [value for value in per_task if value is not None]
    value, error = mean_and_error(kept)
    interval = t_interval(value, error, len(kept), confidence, (0.0, 1.0))
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
