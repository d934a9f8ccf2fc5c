"""Policy-gradient losses on log-probabilities, and the statistics that tell when they go wrong.

Three policies meet: *behaviour* µ sampled the token (its log-probability was recorded then),
*proximal* p is where this update starts, and π is being changed. With advantage A:

::

    ppo         r = π/µ, w = 1
    decoupled   r = π/p, w = min(p/µ, cap)

    clip        L = w · −min(r·A, clip(r, 1 − l, 1 + h)·A)
    gspo        the same with s = exp(mean over the row of log r) in place of r
    cispo       L = w · −stop(clip(r, 1 − l, 1 + h))·A·log π

PPO: Schulman et al. 2017, arXiv:1707.06347. Separate bounds l and h: DAPO, arXiv:2503.14476.
Dual clip (for A < 0 the loss is at most −c·A): Ye et al. 2020, arXiv:1912.09729. Decoupled: Hilton
et al. 2021, arXiv:2110.00641, as AReaL uses it for stale data, arXiv:2505.24298. The cap on w is
truncated importance sampling (Espeholt et al. 2018, IMPALA, arXiv:1802.01561). GSPO: Zheng et al.
2025, arXiv:2507.18071, equation 5. CISPO: MiniMax 2025, arXiv:2506.13585, equation 4.

A penalty for leaving a reference policy can be added, β·KL(π ‖ reference), with Schulman's
estimators (2020, "Approximating KL Divergence"; d = log reference − log π):

::

    k1          −d: unbiased; the gradient is −d·∇log π, that of a reward
    k3          exp(d) − d − 1: unbiased, never negative, as GRPO has it
    k3_exact    k3·π/µ: its gradient is right too (DeepSeek-V3.2, arXiv:2512.02556)

The plain gradient of k1 would be zero in the mean, that of k3 is of another divergence (Tang and
Munos 2025, arXiv:2506.09477).

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
    log_ratio = logprobs - anchor
    if options.surrogate == "gspo":
        length = mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = (log_ratio.sum(dim=1, keepdim=True) / length).expand_as(log_ratio)
    ratio = torch.exp(log_ratio)
    if options.surrogate == "cispo":
        losses, clipped = _weighed(ratio, logprobs, arrays.advantages_BT, options)
    else:
        losses, clipped = _clipped(ratio, arrays.advantages_BT, options)
    if options.objective == "decoupled":
        weight, capped = _importance(proximal - behaviour, mask, options)
        losses = weight * losses
        if options.importance_cap is not None:
            clipped["importance_capped"] = capped
    if options.kl_coefficient:
        penalty = _kl_to_reference(logprobs, behaviour, arrays, options)
        losses = losses + options.kl_coefficient * penalty
    loss = (losses * arrays.weights_BT).sum()
    with torch.no_grad():
        sums = _sums(logprobs, behaviour, ratio, clipped, entropy_BT, arrays)
    return loss, sums


def _weighed(
    ratio: Tensor, logprobs: Tensor, advantages: Tensor, options: LossOptions
) -> tuple[Tensor, Sums]:
    low, high = 1 - options.clip_low, 1 + options.clip_high
    clipped = {"clipped_low": ratio < low, "clipped_high": ratio > high}
    return -ratio.clamp(low, high).detach() * advantages * logprobs, clipped


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


def _importance(log_ratio: Tensor, mask: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """w, which is p/µ within its cap, without gradient; and where it was above."""
    if options.importance_level == "sequence":
        log_ratio = (log_ratio * mask).sum(dim=1, keepdim=True).expand_as(log_ratio)
    # exp of more than 20 would be capped anyway, and must not become inf · 0.
    weight = torch.exp(log_ratio.clamp(max=20.0)).detach()
    if options.importance_cap is None:
        return weight, torch.zeros_like(mask)
    above = weight > options.importance_cap
    kept = options.importance_cap if options.importance_excess == "truncate" else 0.0
    return weight.masked_fill(above, kept), above


def _kl_to_reference(
    logprobs: Tensor, behaviour: Tensor, arrays: TokenArrays, options: LossOptions
) -> Tensor:
    """The penalty of each token; see the module's docstring."""
    if arrays.reference_BT is None:
        raise ValueError("kl_coefficient needs reference log-probabilities in the batch")
    difference = torch.where(
        arrays.mask_BT, arrays.reference_BT - logprobs, torch.zeros_like(logprobs)
    )
    if options.kl_estimator != "k1":
        penalty = torch.exp(difference) - difference - 1
        exact = options.kl_estimator == "k3_exact"
        return penalty * torch.exp(logprobs - behaviour) if exact else penalty
    fixed = difference.detach()
    return -fixed * (1 + logprobs - logprobs.detach())  # −d in value, −d·∇log π in gradient


def _sums(
    logprobs: Tensor,
    behaviour: Tensor,
    ratio: Tensor,
    clipped: Sums,
    entropy: Tensor | None,
    arrays: TokenArrays,
) -> Sums:
    mask = arrays.mask_BT
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
    if arrays.reference_BT is not None:
        away = (arrays.reference_BT - logprobs)[mask].double()
        sums["kl_reference"] = -away.sum()
        sums["kl_reference_k3"] = (torch.exp(away.clamp(max=20.0)) - away - 1).sum()
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
    - `clipped_*`: shares of tokens whose gradient the clip took away (with `cispo`: made smaller).
    - `importance_capped`: share of tokens whose w was above the cap.
    - `kl_reference`: KL(π ‖ reference), nats, estimated by k1; `…_k3` by k3.
    """
    values = {name: float(value) for name, value in sums.items()}
    count = max(values.pop("tokens", 0.0), 1.0)
    weight, squared = values.pop("importance", 0.0), values.pop("importance_squared", 0.0)
    out: Metrics = {"ess": weight * weight / (count * squared) if squared else 0.0}
    out["importance_mean"] = weight / count
    for name, value in values.items():
        if name.startswith("max/"):
            out[f"{name.removeprefix('max/')}_max"] = value
        elif name in ("ratio", "logprob_gap", "value"):
            out[f"{name}_mean"] = value / count
        else:
            out[name] = value / count
    return out
