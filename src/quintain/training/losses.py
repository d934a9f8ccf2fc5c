"""Policy-gradient losses on log-probabilities, and the statistics that tell when they go wrong.

Three policies meet: *behaviour* µ sampled the token (its log-probability was recorded then),
*proximal* p is where this update starts, and π is being changed. With advantage A:

::

    ppo         L = −min(r·A, clip(r, 1 − l, 1 + h)·A)            r = π/µ
    decoupled   L = w · −min(r·A, clip(r, 1 − l, 1 + h)·A)        r = π/p, w = min(p/µ, cap)

PPO: Schulman et al. 2017, arXiv:1707.06347. Separate bounds l and h: DAPO, arXiv:2503.14476.
Dual clip (for A < 0 the loss is at most −c·A): Ye et al. 2020, arXiv:1912.09729. Decoupled: Hilton
et al. 2021, arXiv:2110.00641, as AReaL uses it for stale data, arXiv:2505.24298. The cap on w is
truncated importance sampling (Espeholt et al. 2018, IMPALA, arXiv:1802.01561).

Where a batch is used for a single update, p is the current policy itself: r = 1 in value, and the
gradient is w·A·∇log π.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quintain.protocols import Metrics
from quintain.training.algorithms import LossOptions


@dataclass(frozen=True, slots=True)
class TokenArrays:
    """What the loss of some rows needs; all B × T, one device."""

    mask_BT: Tensor
    """True where there is loss."""
    weights_BT: Tensor
    """From `batching.token_weights`; 0 where there is no loss."""
    advantages_BT: Tensor
    behaviour_BT: Tensor
    """Log-probabilities, nats, as sampled."""
    proximal_BT: Tensor | None = None
    reference_BT: Tensor | None = None


Sums = dict[str, Tensor]
"""Sums over tokens with loss (and maxima, `max/…`), to be joined over micro-batches."""


def policy_loss(
    logprobs_BT: Tensor,
    arrays: TokenArrays,
    options: LossOptions,
    entropy_BT: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """The weighted sum of token losses, and what `summarise` makes metrics of.

    Args:
        logprobs_BT: of π, nats, with gradient; anything where there is no loss.
        arrays: masks, weights, advantages and the other policies' log-probabilities.
        options: the objective.
        entropy_BT: of π's distribution at each token, nats, without gradient.

    Returns:
        A scalar to go backwards from (the mean is in the weights: losses of micro-batches add
        up), and detached sums.
    """
    mask = arrays.mask_BT
    logprobs = torch.where(mask, logprobs_BT, torch.zeros_like(logprobs_BT))
    behaviour = torch.where(mask, arrays.behaviour_BT, torch.zeros_like(arrays.behaviour_BT))
    if arrays.proximal_BT is None:
        proximal = logprobs.detach()
    else:
        proximal = torch.where(mask, arrays.proximal_BT, torch.zeros_like(arrays.proximal_BT))
    anchor = behaviour if options.objective == "ppo" else proximal
    ratio = torch.exp(logprobs - anchor)
    losses, clipped = _clipped(ratio, arrays.advantages_BT, options)
    weight = torch.ones_like(losses)
    if options.objective == "decoupled":
        weight = _importance(proximal - behaviour, mask, options)
        losses = weight * losses
    if options.kl_coefficient:
        losses = losses + options.kl_coefficient * _kl_to_reference(logprobs, arrays)
    loss = (losses * arrays.weights_BT).sum()
    with torch.no_grad():
        sums = _sums(logprobs, behaviour, ratio, clipped, weight, entropy_BT, mask, options)
    return loss, sums


def _clipped(ratio: Tensor, advantages: Tensor, options: LossOptions) -> tuple[Tensor, Sums]:
    plain = -ratio * advantages
    bounded = -ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * advantages
    losses = torch.maximum(plain, bounded)
    clipped = {
        "clipped_low": (ratio < 1 - options.clip_low) & (advantages < 0),
        "clipped_high": (ratio > 1 + options.clip_high) & (advantages > 0),
    }
    if options.dual_clip is not None:
        ceiling = -options.dual_clip * advantages
        clipped["clipped_dual"] = (advantages < 0) & (losses > ceiling)
        losses = torch.where(advantages < 0, torch.minimum(losses, ceiling), losses)
    return losses, clipped


def _importance(log_ratio: Tensor, mask: Tensor, options: LossOptions) -> Tensor:
    """w: p/µ, capped, without gradient."""
    if options.importance_level == "sequence":
        log_ratio = (log_ratio * mask).sum(dim=1, keepdim=True).expand_as(log_ratio)
    # exp of more than 20 would be capped anyway, and must not become inf · 0.
    weight = torch.exp(log_ratio.clamp(max=20.0))
    if options.importance_cap is not None:
        weight = weight.clamp(max=options.importance_cap)
    return weight.detach()


def _kl_to_reference(logprobs: Tensor, arrays: TokenArrays) -> Tensor:
    """k3 = exp(d) − d − 1 with d = log reference − log π: unbiased, never negative.

    Schulman 2020, "Approximating KL Divergence".
    """
    if arrays.reference_BT is None:
        raise ValueError("kl_coefficient needs reference log-probabilities in the batch")
    difference = torch.where(
        arrays.mask_BT, arrays.reference_BT - logprobs, torch.zeros_like(logprobs)
    )
    return torch.exp(difference) - difference - 1


def _sums(
    logprobs: Tensor,
    behaviour: Tensor,
    ratio: Tensor,
    clipped: Sums,
    weight: Tensor,
    entropy: Tensor | None,
    mask: Tensor,
    options: LossOptions,
) -> Sums:
    off_policy = (logprobs - behaviour)[mask].double()
    raw = torch.exp(off_policy.clamp(max=20.0))
    sums: Sums = {
        "tokens": mask.sum().double(),
        "kl_behaviour": -off_policy.sum(),
        "kl_behaviour_k3": (raw - off_policy - 1).sum(),
        "logprob_gap": off_policy.abs().sum(),
        "importance": raw.sum(),
        "importance_squared": (raw * raw).sum(),
        "ratio": ratio[mask].double().sum(),
        "logprob": logprobs[mask].double().sum(),
    }
    if options.objective == "decoupled" and options.importance_cap is not None:
        sums["importance_capped"] = (weight[mask] >= options.importance_cap).sum().double()
    for name, where in clipped.items():
        sums[name] = (where & mask).sum().double()
    if entropy is not None:
        sums["entropy"] = entropy[mask].double().sum()
    if mask.any():
        sums["max/ratio"] = ratio[mask].max().double()
        sums["max/logprob_gap"] = off_policy.abs().max()
        sums["max/importance"] = raw.max()
    return sums


def join(total: Sums, more: Sums) -> Sums:
    """Sums of two sets of tokens as of one."""
    out = dict(total)
    for name, value in more.items():
        if name not in out:
            out[name] = value
        elif name.startswith("max/"):
            out[name] = torch.maximum(out[name], value)
        else:
            out[name] = out[name] + value
    return out


def summarise(sums: Sums) -> Metrics:
    """Sums as metrics.

    - `ess`: effective sample size of π/µ as a share of the tokens, (Σw)²/(n·Σw²); near 0, a few
      tokens carry the whole update.
    - `kl_behaviour`: KL(µ ‖ π) over the sampled tokens, nats; k1 (mean of log µ − log π) and k3.
    - `logprob_gap_mean`, `logprob_gap_max`: |log π − log µ|; on fresh tokens it measures how far
      sampler and learner disagree about the same weights.
    - `clipped_*`: shares of tokens whose gradient the clip took away.
    """
    values = {name: float(value) for name, value in sums.items()}
    count = max(values.pop("tokens", 0.0), 1.0)
    weight, squared = values.pop("importance", 0.0), values.pop("importance_squared", 0.0)
    out: Metrics = {"ess": weight * weight / (count * squared) if squared else 0.0}
    out["importance_mean"] = weight / count
    for name, value in values.items():
        if name.startswith("max/"):
            out[f"{name.removeprefix('max/')}_max"] = value
        elif name in ("ratio", "logprob_gap"):
            out[f"{name}_mean"] = value / count
        else:
            out[name] = value / count
    return out
