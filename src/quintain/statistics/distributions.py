"""Student's t and the beta distribution, to the last digits of a double."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist


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
