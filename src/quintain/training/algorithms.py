"""Algorithms: an advantage, an objective and an aggregation under one name. No torch here.

The registry table `algorithms` holds functions without arguments that give an `Algorithm`; a
plug-in adds its own by an entry point, or is named as `"my.module:function"`. Any field can be
set from the outside: `algorithm("grpo", clip_high=0.2)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from quintain.errors import ConfigError
from quintain.record import Record
from quintain.registry import algorithms

Advantage = Literal["dr_grpo", "grpo", "rloo", "gae"]
Objective = Literal["ppo", "decoupled"]
Surrogate = Literal["clip", "gspo", "cispo"]
Level = Literal["token", "sequence"]
Excess = Literal["truncate", "mask"]
Aggregation = Literal["token", "sequence", "constant"]
KlEstimator = Literal["k1", "k3", "k3_exact"]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """What shapes the loss; see `losses` for the formulas."""

    objective: Objective = "decoupled"
    surrogate: Surrogate = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    """c > 1; None: off. Without meaning for `cispo`."""
    importance_cap: float | None = 2.0
    """Cap of w with `decoupled`; None: no cap."""
    importance_level: Level = "token"
    """Whether w is taken a token, or once a row (product of its tokens' ratios)."""
    importance_excess: Excess = "truncate"
    """What becomes of a token whose w is above the cap: weighed with the cap, or left out."""
    kl_coefficient: float = 0.0
    """Weight of KL(π ‖ reference); 0: no reference is computed."""
    kl_estimator: KlEstimator = "k3"


@dataclass(frozen=True, slots=True)
class CriticOptions:
    """How values are learned and turned into advantages; see `critic` for the formulas."""

    gamma: float = 1.0
    """Discount a token."""
    gae_lambda: float = 1.0
    """1: return minus value, unbiased; less: leans on the values of later tokens."""
    whiten: bool = True
    """Whether advantages get mean 0 and deviation 1 over the batch's tokens with loss."""
    coefficient: float = 0.1
    """Weight of the value loss."""
    clip: float | None = 0.2
    """How far a value may move from the one at the start of the update; None: freely."""
    lr: float = 1e-3
    """Peak learning rate of the value head; the model below it has the policy's."""


class Algorithm(Record):
    """How rewards become a gradient."""

    name: str
    advantage: Advantage = "dr_grpo"
    """See `advantages`; with `gae` a value head is trained along."""
    objective: Objective = "decoupled"
    """`decoupled`: clip around the policy at the start of the update and weigh by truncated
    importance sampling, for data of older versions; `ppo`: clip around the behaviour policy."""
    surrogate: Surrogate = "clip"
    """`clip`: PPO's minimum, token by token; `gspo`: the same of a whole row's ratio; `cispo`: the
    clipped ratio as a weight of the log-probability."""
    aggregation: Aggregation = "token"
    """How token losses are averaged: see `batching.token_weights`."""
    constant_tokens: int = Field(default=1024, gt=0)
    """With aggregation `constant`: tokens by which a trajectory's summed loss is divided."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.28, ge=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    importance_cap: float | None = Field(default=2.0, gt=0)
    importance_level: Level = "token"
    importance_excess: Excess = "truncate"
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the weights that training began with."""
    kl_estimator: KlEstimator = "k3"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """With `gae`: see `CriticOptions`, likewise the next ones."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    whiten: bool = True
    value_coefficient: float = Field(default=0.1, gt=0)
    value_clip: float | None = Field(default=0.2, gt=0)
    value_lr: float = Field(default=1e-3, gt=0)

    @model_validator(mode="after")
    def _rows_have_one_advantage(self) -> Algorithm:
        if self.surrogate == "gspo" and self.advantage == "gae":
            raise ValueError(
                "surrogate 'gspo' weighs whole rows, advantage 'gae' differs from token to token: "
                "take another of the two"
            )
        return self

    @property
    def compares(self) -> bool:
        """Whether equal rewards in a group say nothing; a critic judges each sample alone."""
        return self.advantage != "gae"

    @property
    def loss(self) -> LossOptions:
        """What the loss needs of it."""
        return LossOptions(
            objective=self.objective,
            surrogate=self.surrogate,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            importance_cap=self.importance_cap,
            importance_level=self.importance_level,
            importance_excess=self.importance_excess,
            kl_coefficient=self.kl_coefficient,
            kl_estimator=self.kl_estimator,
        )

    @property
    def critic(self) -> CriticOptions | None:
        """What the critic needs of it; None: there is none."""
        if self.advantage != "gae":
            return None
        return CriticOptions(
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            whiten=self.whiten,
            coefficient=self.value_coefficient,
            clip=self.value_clip,
            lr=self.value_lr,
        )


def grpo() -> Algorithm:
    """Group-relative policy optimisation with today's corrections; the default.

    Advantage r − mean (Dr. GRPO, arXiv:2503.20783), token mean and a higher upper clip (DAPO,
    arXiv:2503.14476), decoupled objective with truncated importance sampling (AReaL,
    arXiv:2505.24298), no KL.
    """
    return Algorithm(name="grpo")


def grpo_original() -> Algorithm:
    """GRPO as published: (r − mean)/std, a mean over sequences, one clip of 0.2, no KL here.

    Shao et al. 2024, arXiv:2402.03300.
    """
    return Algorithm(
        name="grpo-original",
        advantage="grpo",
        objective="ppo",
        aggregation="sequence",
        clip_high=0.2,
        dual_clip=None,
    )


def dr_grpo() -> Algorithm:
    """Dr. GRPO: r − mean, summed loss over a constant. Liu et al. 2025, arXiv:2503.20783."""
    return Algorithm(name="dr_grpo", aggregation="constant", clip_high=0.2)


def rloo() -> Algorithm:
    """Leave-one-out REINFORCE: a mean over sequences. Ahmadian et al. 2024, arXiv:2402.14740."""
    return Algorithm(name="rloo", advantage="rloo", aggregation="sequence")


def dapo() -> Algorithm:
    """DAPO: (r − mean)/std, a token mean, a higher upper clip. Yu et al. 2025, arXiv:2503.14476.

    Its other two parts are settings of a run: groups without signal are always replaced, and
    `overlong = "soft"` is its length penalty.
    """
    return Algorithm(name="dapo", advantage="grpo", objective="ppo", dual_clip=None)


def ppo() -> Algorithm:
    """PPO with a value head and GAE: no groups are needed, each sample is judged alone.

    Schulman et al. 2017, arXiv:1707.06347; GAE: Schulman et al. 2015, arXiv:1506.02438. γ and λ are
    1: the reward comes at the end, and with λ < 1 an untrained critic would hide it from all but
    the last tokens (Yuan et al. 2025, VC-PPO, arXiv:2503.01491).
    """
    return Algorithm(name="ppo", advantage="gae", objective="ppo", clip_high=0.2, dual_clip=None)


def gspo() -> Algorithm:
    """GSPO: one ratio for a whole row, the geometric mean of its tokens' ratios, and a tight clip.

    Zheng et al. 2025, arXiv:2507.18071. The clip is around the policy at the start of the update,
    as there, and acts from the second update on a batch on; how the sampler's numbers differ from
    the learner's is left to the importance weights, which a clip of 3e-4 could not tell apart.
    """
    return Algorithm(
        name="gspo",
        advantage="grpo",
        surrogate="gspo",
        aggregation="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        dual_clip=None,
    )


def cispo() -> Algorithm:
    """CISPO: the ratio, bounded above, weighs log π; no token loses its gradient to a clip.

    MiniMax 2025, arXiv:2506.13585, which leaves the bound open; 5, and no lower one, are of Khatri
    et al. 2025, "The Art of Scaling RL Compute", arXiv:2510.13786.
    """
    return Algorithm(
        name="cispo",
        advantage="grpo",
        objective="ppo",
        surrogate="cispo",
        clip_low=1.0,
        clip_high=4.0,
        dual_clip=None,
    )


def algorithm(name: str, /, **changes: Any) -> Algorithm:
    """The preset of that name with some fields changed.

    Raises:
        RegistryError: no such preset.
        ConfigError: it is no `Algorithm`, or a field or value is wrong.
    """
    preset = algorithms.get(name)()
    if not isinstance(preset, Algorithm):
        raise ConfigError(f"algorithm {name!r} gives a {type(preset).__name__}, not an Algorithm")
    if not changes:
        return preset
    try:
        return Algorithm.model_validate({**preset.model_dump(), **changes})
    except ValueError as error:
        raise ConfigError(f"algorithm {name!r}: {error}") from error
