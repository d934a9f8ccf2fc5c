"""Advantages: how much better a sample is than the other samples of its task.

Each function takes the rewards of one group (the G samples of one task) and gives one advantage
a member. NaN stands for *no reward*: a host-caused fault or an abstention. Such a member is left
out of the baseline and gets NaN back, so that one broken sandbox never moves its neighbours.

A group whose rewards are all equal says nothing: its advantages are exactly 0 and `has_signal`
is False. Numpy only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quintain.errors import ConfigError

Float64 = npt.NDArray[np.float64]
Estimator = Callable[[Float64], Float64]


def has_signal(rewards_G: Float64) -> bool:
    """Whether at least two members have different rewards (NaN: no reward)."""
    known = rewards_G[~np.isnan(rewards_G)]
    return bool(known.size >= 2 and known.max() > known.min())


def _centred(rewards_G: Float64) -> Float64:
    """r − mean over the members that have a reward; exactly 0 where all are equal."""
    known = ~np.isnan(rewards_G)
    if not has_signal(rewards_G):
        return np.where(known, 0.0, np.nan)
    return np.asarray(rewards_G - rewards_G[known].mean(), dtype=np.float64)


def dr_grpo(rewards_G: Float64) -> Float64:
    """A_i = r_i − mean(r): the group mean as baseline, no division by the deviation.

    Dividing by std(r) weighs tasks that are nearly always or nearly never solved most; leaving it
    out removes that bias. Liu et al. 2025, "Understanding R1-Zero-Like Training",
    arXiv:2503.20783.

    Args:
        rewards_G: rewards of one group; NaN: no reward.

    Returns:
        One advantage a member; NaN where there is no reward.
    """
    return _centred(np.asarray(rewards_G, dtype=np.float64))


def grpo(rewards_G: Float64, *, epsilon: float = 1e-6) -> Float64:
    """A_i = (r_i − mean(r)) / (std(r) + ε), std with n in the denominator.

    Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1.2 (which leaves n or n − 1
    open).

    Args:
        rewards_G: rewards of one group; NaN: no reward.
        epsilon: keeps the quotient finite.

    Returns:
        One advantage a member; NaN where there is no reward.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    centred_G = _centred(rewards_G)
    if not has_signal(rewards_G):
        return centred_G
    return np.asarray(centred_G / (np.nanstd(rewards_G) + epsilon), dtype=np.float64)


def rloo(rewards_G: Float64) -> Float64:
    """A_i = r_i − mean of the others = n/(n − 1) · (r_i − mean(r)): leave one out.

    The baseline of a sample does not contain its own reward, hence no bias. Kool et al. 2019,
    "Buy 4 REINFORCE Samples, Get a Baseline for Free!"; Ahmadian et al. 2024, "Back to Basics",
    arXiv:2402.14740.

    Args:
        rewards_G: rewards of one group; NaN: no reward.

    Returns:
        One advantage a member; NaN where there is no reward.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    count = int((~np.isnan(rewards_G)).sum())
    if count < 2:
        return _centred(rewards_G)
    return np.asarray(_centred(rewards_G) * (count / (count - 1)), dtype=np.float64)


def reward(rewards_G: Float64) -> Float64:
    """The reward itself: a critic takes the values off it, token by token (`gae`).

    Args:
        rewards_G: rewards of one group; NaN: no reward.

    Returns:
        The same.
    """
    return np.asarray(rewards_G, dtype=np.float64)


def gae(rewards_NT: Float64, values_NT: Float64, *, gamma: float, gae_lambda: float) -> Float64:
    """A_t = Σ_k (γλ)^k·δ_(t+k) with δ_t = r_t + γ·V_(t+1) − V_t: generalised advantages.

    λ = 1 gives return minus value, λ = 0 the temporal difference. Schulman et al. 2015,
    arXiv:1506.02438.

    Args:
        rewards_NT: what came after each of T tokens of N trajectories; 0 after their end.
        values_NT: of the state in which each token was sampled; 0 after their end.
        gamma: discount a token.
        gae_lambda: λ.

    Returns:
        One advantage a token; 0 after the end.
    """
    out_NT = np.zeros_like(rewards_NT, dtype=np.float64)
    after_N = np.zeros(len(rewards_NT))
    next_value_N = np.zeros(len(rewards_NT))
    for t in reversed(range(rewards_NT.shape[1])):
        surprise_N = rewards_NT[:, t] + gamma * next_value_N - values_NT[:, t]
        after_N = surprise_N + gamma * gae_lambda * after_N
        out_NT[:, t] = after_N
        next_value_N = values_NT[:, t]
    return out_NT


ADVANTAGES: dict[str, Estimator] = {
    "dr_grpo": dr_grpo,
    "grpo": grpo,
    "rloo": rloo,
    "gae": reward,
}


def estimator(name: str) -> Estimator:
    """The estimator of that name.

    Raises:
        ConfigError: there is none; the known names are listed.
    """
    if name not in ADVANTAGES:
        raise ConfigError(f"no advantage named {name!r}; known: {', '.join(sorted(ADVANTAGES))}")
    return ADVANTAGES[name]
