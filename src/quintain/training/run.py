"""`run_training`: the whole of training, without preflight, evaluation and selection.

Those belong to `loop`, which calls this with a callback for checkpoints.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from quintain.errors import ConfigError
from quintain.policies.local.spec import ModelSpec
from quintain.rollouts.host import Host
from quintain.store import Store
from quintain.training.asynchronous import train_asynchronously
from quintain.training.config import TrainConfig
from quintain.training.contracts import AsyncLearner, OnCheckpoint, TrainedPolicy
from quintain.training.learner_process import local_learner
from quintain.training.restarts import LastingLearner
from quintain.training.sampler import TaskSampler, make_sampler
from quintain.training.synchronous import train_synchronously
from quintain.training.trainer import Trainer


async def run_training(
    config: TrainConfig,
    host: Host,
    store: Store,
    *,
    on_checkpoint: OnCheckpoint | None = None,
    learner: AsyncLearner | None = None,
    tasks: TaskSampler | None = None,
) -> Trainer:
    """Trains the host's policy, from the start or from the run's last checkpoint.

    Args:
        config: settings.
        host: entered; its policy must take new weights, its sampling is the rollouts'.
        store: the run, open for writing.
        on_checkpoint: see `contracts.OnCheckpoint`.
        learner: None: one for the policy's model in a process of its own, started again when it
            dies.
        tasks: None: the sampler that the settings name, over the environment's training tasks.

    Returns:
        The trainer at its last step.

    Raises:
        TrainingError: it cannot go on; the run can be resumed.
        ConfigError: the policy cannot be trained, or a setting is wrong.
    """
    policy = trainable(host.policy)
    if tasks is None:
        tasks = make_sampler(
            config.sampler,
            host.environment.tasks,
            config.seed,
            config.task_pool,
            config.sampler_options,
        )
    if config.sampling is not None:
        host.sampling = config.sampling
    sampling = host.sampling or host.environment.sampling
    spec: ModelSpec = policy.spec
    options = config.learner_options(sampling, lora=spec.lora is not None)
    owned: LastingLearner | None = None
    if learner is None:
        owned = await LastingLearner.start(
            functools.partial(local_learner, spec, options, store.folder / "weights"), store.event
        )
        learner = owned
    try:
        trainer = Trainer(config, host, policy, learner, tasks, store, on_checkpoint)
        try:
            await trainer.begin()
            if await _mode(trainer) == "sync":
                await train_synchronously(trainer)
            else:
                await train_asynchronously(trainer)
            await trainer.finish()
        finally:
            await trainer.close()
        return trainer
    finally:
        if owned is not None:
            await owned.close()


def trainable(policy: object) -> TrainedPolicy:
    """The policy, when it can be trained.

    Raises:
        ConfigError: it cannot, and what can.
    """
    if not isinstance(policy, TrainedPolicy):
        raise ConfigError(
            f"{type(policy).__name__} cannot be trained: training needs a policy that holds its "
            "own weights, such as q.local('folder', lora=16), q.smollm2() or q.tiny()"
        )
    return policy


async def _mode(trainer: Trainer) -> Literal["sync", "async"]:
    """The mode of the run; with `auto`, measured in its first step and kept when resumed."""
    config = trainer.config
    if config.max_staleness == 0:
        return await _decided(trainer, "sync", "max_staleness is 0")
    if config.mode != "auto":
        return await _decided(trainer, config.mode, "as configured")
    before = trainer.store.meta("training.mode")
    if before is not None and before.get("auto"):
        return "sync" if before["mode"] == "sync" else "async"
    await train_synchronously(trainer, until=trainer.step + 1)
    mode, why = choose(list(trainer.rollout_s), config.sync_below_s)
    return await _decided(trainer, mode, why, auto=True)


def choose(
    durations_s: Sequence[float], sync_below_s: float
) -> tuple[Literal["sync", "async"], str]:
    """The mode for rollouts that take so long, and why.

    Args:
        durations_s: of the rollouts of one step: a synchronous step waits for the slowest of them,
            which is what overlapping saves. Short rollouts gain little and lose freshness.
        sync_below_s: a shorter wait than this is not worth it.
    """
    slowest_s = max(durations_s, default=0.0)
    mean_s = sum(durations_s) / max(1, len(durations_s))
    mode: Literal["sync", "async"] = "sync" if slowest_s < sync_below_s else "async"
    relation = "below" if mode == "sync" else "not below"
    return mode, (
        f"a synchronous step waits for the slowest of its rollouts: of {len(durations_s)} measured "
        f"it took {slowest_s:.1f} s (mean {mean_s:.1f} s), {relation} the bound of "
        f"{sync_below_s:g} s (sync_below_s)"
    )


async def _decided(
    trainer: Trainer, mode: Literal["sync", "async"], why: str, *, auto: bool = False
) -> Literal["sync", "async"]:
    decision = {"mode": mode, "why": why, "auto": auto}
    await trainer.store.set_meta("training.mode", decision)
    await trainer.store.event("training.mode", decision)
    return mode
