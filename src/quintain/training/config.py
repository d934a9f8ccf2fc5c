"""`TrainConfig`: everything that can be set about a training run, with units and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, model_validator

from quintain.errors import ConfigError
from quintain.messages import Sampling
from quintain.record import Json, Record, derive_seed
from quintain.training.advantages import estimator
from quintain.training.algorithms import (
    Aggregation,
    Algorithm,
    CriticOptions,
    LossOptions,
    algorithm,
)
from quintain.training.batching import Overlong, Packing

Mode = Literal["auto", "sync", "async"]


LORA_LR = 2e-4
FULL_LR = 1e-5


class TrainConfig(Record):
    """Settings of one training run."""

    algorithm: str = "grpo"
    """A name of the registry table `algorithms`, or `"my.module:function"`."""
    algorithm_options: dict[str, Json] = Field(default_factory=dict)
    """Fields of the algorithm to change, such as `kl_coefficient` or `gae_lambda`: see
    `algorithms.Algorithm`."""
    steps: int = Field(default=100, gt=0)
    """Training steps in all; a resumed run goes on to this number."""
    group_size: int = Field(default=8, ge=1)
    """G: samples of one task that are compared with each other; 1 with a critic only."""
    groups_per_step: int = Field(default=8, ge=1)
    """P: tasks whose groups make up one step."""
    mode: Mode = "auto"
    """`sync`: rollouts and learner take turns; `async`: they overlap; `auto`: measured in the
    first step, synchronous when rollouts take less than `sync_below_s`."""
    sync_below_s: float = Field(default=30.0, gt=0)
    """With `auto`: seconds that the slowest rollout of a step takes below which to stay
    synchronous."""
    max_staleness: int = Field(default=4, ge=0)
    """Policy versions by which a token may be older than the learner when it is trained; older ones
    are masked. 0 is the synchronous mode."""
    max_concurrent_rollouts: int = Field(default=64, gt=0)
    repeatable: bool = True
    """In the synchronous mode: generation batches form by turn and order, not by arrival, so that a
    run repeats bit for bit on a CPU. Rollouts of a step then wait for each other at every turn."""
    refill_groups: int | None = Field(default=None, ge=0)
    """Groups drawn in addition in one step, at most, in place of groups whose rewards are all
    equal; None: `groups_per_step`."""
    min_signal: float = Field(default=0.25, ge=0, le=1)
    """Share of a step's groups that must carry signal; with fewer, the step changes nothing."""
    lr: float | None = Field(default=None, gt=0)
    """Peak learning rate; None: 2e-4 for LoRA adapters, 1e-5 for all parameters."""
    warmup_steps: int = Field(default=2, ge=0)
    """Optimiser steps over which the learning rate rises."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimiser steps on one batch."""
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """None: the algorithm's; likewise the next ones."""
    clip_high: float | None = Field(default=None, ge=0)
    importance_cap: float | None = Field(default=None, gt=0)
    aggregation: Aggregation | None = None
    overlong: Overlong = "keep"
    """What becomes of trajectories that a limit cut short: trained with their verdict, masked, or
    their reward lowered by `overlong_penalty`; `soft` lowers it step by step before the limit."""
    overlong_penalty: float = Field(default=0.5, ge=0)
    overlong_tokens: int | None = Field(default=None, gt=0)
    """With `soft`: sampled tokens of a trajectory at which the whole penalty is due."""
    overlong_buffer: int = Field(default=256, gt=0)
    """With `soft`: the tokens before that over which the penalty rises from 0."""
    max_row_tokens: int = Field(default=8192, gt=1)
    """Longer rows are cut at the end."""
    micro_tokens: int = Field(default=4096, gt=0)
    """Tokens of one forward and backward pass; bounds the learner's memory."""
    sampling: Sampling | None = None
    """How the policy samples in training; None: as the environment says."""
    max_fault_share: float = Field(default=0.25, ge=0, le=1)
    """Share of host-caused faults among the latest rollouts above which training pauses."""
    fault_patience_s: float = Field(default=600.0, ge=0)
    """Seconds of such a pause after which training ends; the run can be resumed."""
    checkpoint_every: int = Field(default=10, gt=0)
    """Steps between checkpoints; the first and the last step always have one."""
    eval_every: int = Field(default=10, ge=0)
    """Steps between evaluations, each of a checkpoint of its own; 0: before and after only."""
    sampler: str = "uniform"
    """Which task comes next: a name of the registry table `samplers` (`uniform`, `band`,
    `curriculum`)."""
    sampler_options: dict[str, Json] = Field(default_factory=dict)
    """Arguments of the sampler, such as `low` and `high` of `band`."""
    task_pool: int = Field(default=10_000, gt=0)
    """Training tasks that are drawn from, at most: the first ones of the source."""
    seed: int = 0
    learner_threads: int | None = Field(default=None, gt=0)
    """CPU threads of the learner's process; None: all."""

    @model_validator(mode="after")
    def _asynchronous_needs_staleness(self) -> TrainConfig:
        if self.mode == "async" and self.max_staleness == 0:
            raise ValueError(
                "mode 'async' needs max_staleness of at least 1; 0 is the synchronous mode"
            )
        return self

    @model_validator(mode="after")
    def _soft_needs_a_limit(self) -> TrainConfig:
        if self.overlong == "soft" and self.overlong_tokens is None:
            raise ValueError(
                "overlong 'soft' needs overlong_tokens, the length at which its penalty is whole"
            )
        return self

    @property
    def refills(self) -> int:
        """Groups drawn in addition in one step, at most; none where equal rewards teach too."""
        if not self.resolved().compares:
            return 0
        return self.groups_per_step if self.refill_groups is None else self.refill_groups

    @property
    def signal_needed(self) -> float:
        """Share of a step's groups whose rewards must differ."""
        return self.min_signal if self.resolved().compares else 0.0

    def resolved(self) -> Algorithm:
        """The algorithm with this run's changes.

        Raises:
            RegistryError: no such algorithm.
            ConfigError: an option is wrong, or the algorithm compares and the groups have one.
        """
        own = {
            name: value
            for name in ("clip_low", "clip_high", "importance_cap", "aggregation")
            if (value := getattr(self, name)) is not None
        }
        found = algorithm(self.algorithm, **{**self.algorithm_options, **own})
        if found.compares and self.group_size < 2:
            raise ConfigError(
                f"algorithm {self.algorithm!r} compares the samples of a task: group_size is at "
                "least 2 (algorithm 'ppo' takes 1)"
            )
        return found

    def packing(self) -> Packing:
        """How groups become batches."""
        algorithm = self.resolved()
        return Packing(
            estimator=estimator(algorithm.advantage),
            aggregation=algorithm.aggregation,
            constant_tokens=algorithm.constant_tokens,
            overlong=self.overlong,
            overlong_penalty=self.overlong_penalty,
            overlong_tokens=self.overlong_tokens or 0,
            overlong_buffer=self.overlong_buffer,
            max_row_tokens=self.max_row_tokens,
            max_staleness=self.max_staleness,
            compares=algorithm.compares,
        )

    def learner_options(self, sampling: Sampling, *, lora: bool) -> LearnerOptions:
        """What the learner needs of it.

        Args:
            sampling: of the rollouts.
            lora: whether only adapters are trained.

        Raises:
            ConfigError: the sampling cannot be trained on.
        """
        if sampling.temperature == 0:
            raise ConfigError(
                "training needs rollouts that differ: the sampling's temperature is 0; set "
                "train.sampling.temperature (1.0 is usual)"
            )
        algorithm = self.resolved()
        return LearnerOptions(
            loss=algorithm.loss,
            critic=algorithm.critic,
            aggregation=algorithm.aggregation,
            lr=self.lr if self.lr is not None else LORA_LR if lora else FULL_LR,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            warmup_steps=self.warmup_steps,
            updates_per_batch=self.updates_per_batch,
            micro_tokens=self.micro_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=derive_seed(self.seed, "learner") % 2**32,
            threads=self.learner_threads,
        )

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation belongs to a step."""
        if step in (0, self.steps):
            return True
        return self.eval_every > 0 and step % self.eval_every == 0

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint belongs to a step."""
        return self.evaluates_at(step) or step % self.checkpoint_every == 0


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How to learn."""

    loss: LossOptions = field(default_factory=LossOptions)
    critic: CriticOptions | None = None
    """None: advantages come with the batch."""
    aggregation: Aggregation = "token"
    lr: float = 1e-5
    """Peak learning rate, after warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly."""
    updates_per_batch: int = 1
    """Optimiser steps on each batch; with more than one, the proximal policy is the one before the
    first."""
    micro_tokens: int = 8192
    """Tokens, padding included, of one forward and backward pass."""
    temperature: float = 1.0
    """Of the rollouts' sampling; likewise the next three."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    threads: int | None = None
    """CPU threads; None: torch's own choice."""
    device: str | None = None
    """None: the model's own."""
