"""The critic of PPO: a value for every state in which a token is sampled, on the policy's own body.

A linear head reads the hidden state that also predicts the token, so one forward pass serves both.
It begins at 0: at first every value is 0 and the body feels nothing of it. With adapters the head
and the adapters are trained; the sampler never sees the head.

::

    A_t = generalised advantage (`advantages.gae`), the trajectory's reward after its last token
    R_t = A_t + V_old,t
    L_V = ½·max((V − R)², (clip(V, V_old − c, V_old + c) − R)²)

Advantages and R are of the weights at the start of the update. The clip: Schulman et al.'s PPO
code; Engstrom et al. 2020, "Implementation Matters in Deep RL", arXiv:2005.12729.

Only sampled tokens are states: what the environment writes in between is part of the way to the
next one. Tokens that are too old to be trained keep their place in that chain. A trajectory that
was split into rows is one chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from quintain.batch import Batch, Bool, Float
from quintain.protocols import Metrics
from quintain.training.advantages import gae
from quintain.training.algorithms import CriticOptions
from quintain.training.losses import Sums


class ValueHead(nn.Module):  # type: ignore[misc]
    """Hidden states to values, in float32 under a model of any precision."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, hidden_NH: Tensor) -> Tensor:
        """One value a state."""
        return hidden_NH.float() @ self.weight + self.bias


@dataclass(frozen=True, slots=True)
class Targets:
    """What the critic makes of a batch, B × T, 0 where no token was sampled."""

    advantages_BT: Float
    returns_BT: Float
    values_BT: Float
    """At the start of the update."""


def states(batch: Batch) -> Bool:
    """Where a value is needed: every sampled token that something predicts, stale ones included."""
    sampled_BT = batch.version_BT >= 0
    sampled_BT[:, 0] = False
    return np.asarray(sampled_BT)


def targets(batch: Batch, values_BT: Float, options: CriticOptions) -> tuple[Targets, Metrics]:
    """Advantages and returns of a batch.

    Args:
        batch: its advantages are the trajectories' rewards (`advantages.reward`).
        values_BT: of the `states` under the weights at the start of the update.
        options: γ, λ and whether advantages are whitened.

    Returns:
        The targets, and metrics: `explained_variance` is 1 − Var(R − V)/Var(R) over the tokens
        with loss; 0 says that a constant would do as well, below 0 worse.
    """
    rows, columns = np.nonzero(states(batch))
    order = np.argsort(batch.trajectory_B[rows], kind="stable")
    rows, columns = rows[order], columns[order]
    names, first, chain, lengths = np.unique(
        batch.trajectory_B[rows], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.arange(len(rows)) - first[chain]
    shape = (len(names), int(lengths.max()))
    rewards_NT, chained_NT = np.zeros(shape), np.zeros(shape)
    chained_NT[chain, place] = values_BT[rows, columns]
    last = first + lengths - 1
    rewards_NT[np.arange(len(names)), lengths - 1] = batch.advantages_BT[rows[last], columns[last]]
    found_NT = gae(rewards_NT, chained_NT, gamma=options.gamma, gae_lambda=options.gae_lambda)
    advantages_BT = np.zeros(values_BT.shape, dtype=np.float32)
    advantages_BT[rows, columns] = found_NT[chain, place]
    returns_BT = (advantages_BT + values_BT).astype(np.float32)
    trained = batch.loss_mask_BT
    metrics = _metrics(advantages_BT[trained], returns_BT[trained])
    if options.whiten:
        known = advantages_BT[trained]
        advantages_BT[trained] = (known - known.mean()) / (known.std() + 1e-8)
    return Targets(advantages_BT, returns_BT, values_BT), metrics


def _metrics(advantages_N: Float, returns_N: Float) -> Metrics:
    spread = float(returns_N.var())
    return {
        "advantage_mean": float(advantages_N.mean()),
        "advantage_std": float(advantages_N.std()),
        "return_mean": float(returns_N.mean()),
        # R − V is the advantage.
        "explained_variance": 1 - float(advantages_N.var()) / spread if spread > 1e-12 else 0.0,
    }


def value_loss(
    values_BT: Tensor,
    old_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor,
    options: CriticOptions,
) -> tuple[Tensor, Sums]:
    """The weighted sum of the tokens' value losses times its coefficient, and sums for metrics.

    Args:
        values_BT: with gradient; anything where there is no loss.
        old_BT: at the start of the update.
        returns_BT: R.
        mask_BT: True where there is loss.
        weights_BT: as for the policy's loss.
        options: coefficient and clip.
    """
    values = torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))
    losses = (values - returns_BT).square()
    clipped = torch.zeros_like(mask_BT)
    if options.clip is not None:
        near = old_BT + (values - old_BT).clamp(-options.clip, options.clip)
        bounded = (near - returns_BT).square()
        clipped = (bounded > losses) & mask_BT
        losses = torch.maximum(losses, bounded)
    losses = 0.5 * losses
    sums: Sums = {
        "value_loss": losses.detach()[mask_BT].double().sum(),
        "value": values.detach()[mask_BT].double().sum(),
        "value_clipped": clipped.sum().double(),
    }
    return options.coefficient * (losses * weights_BT).sum(), sums
