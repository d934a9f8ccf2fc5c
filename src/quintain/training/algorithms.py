"""Algorithms: an advantage, an objective and an aggregation under one name. No torch here.

The registry table `algorithms` holds functions without arguments that give an `Algorithm`; a
plug-in adds its own by an entry point, or is named as `"my.module:function"`. Any field can be
set from the outside: `algorithm("grpo", clip_high=0.2)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from quintain.errors import ConfigError
from quintain.record import Record
from quintain.registry import algorithms

Objective = Literal["ppo", "decoupled"]
Level = Literal["token", "sequence"]
Aggregation = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """What shapes the loss; see `losses` for the formulas."""

    objective: Objective = "decoupled"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    """c > 1; None: off."""
    importance_cap: float | None = 2.0
    """Cap of w with `decoupled`; None: no cap."""
    importance_level: Level = "token"
    """Whether w is taken a token, or once a row (product of its tokens' ratios)."""
    kl_coefficient: float = 0.0
    """Weight of KL(π ‖ reference), estimator k3; needs reference log-probabilities."""


class Algorithm(Record):
    """How rewards become a gradient."""

    name: str
    advantage: Literal["dr_grpo", "grpo", "rloo"] = "dr_grpo"
    """See `advantages`."""
    objective: Objective = "decoupled"
    """`decoupled`: clip around the policy at the start of the update and weigh by truncated
    importance sampling, for data of older versions; `ppo`: clip around the behaviour policy."""
    aggregation: Aggregation = "token"
    """How token losses are averaged: see `batching.token_weights`."""
    constant_tokens: int = Field(default=1024, gt=0)
    """With aggregation `constant`: tokens by which a trajectory's summed loss is divided."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.28, ge=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    importance_cap: float | None = Field(default=2.0, gt=0)
    importance_level: Level = "token"

    @property
    def loss(self) -> LossOptions:
        """What the loss needs of it."""
        return LossOptions(
            objective=self.objective,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            importance_cap=self.importance_cap,
            importance_level=self.importance_level,
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


def algorithm(name: str, **changes: Any) -> Algorithm:
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
