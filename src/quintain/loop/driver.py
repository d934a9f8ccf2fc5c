"""`train`: preflight, evaluate, train with evaluations on the way, select, held-out once.

Everything is stored in one run; the same call with `resume=True` goes on where a killed one was,
repeating nothing that is stored.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from quintain import registry
from quintain.config import provenance
from quintain.errors import ConfigError, StoreError, TrainingError
from quintain.evals import aevaluate
from quintain.loop.preflight import Flight, preflight
from quintain.loop.run import (
    PLANNED,
    SELECTED,
    TrainRun,
    eval_purpose,
    heldout_purpose,
)
from quintain.loop.settings import EvalSettings
from quintain.loop.signals import watch
from quintain.messages import Sampling
from quintain.policies.local import Local
from quintain.protocols import Environment, Policy, Published
from quintain.record import Json, canonical
from quintain.rollouts import Host, run_blocking
from quintain.store import Store, new_folder
from quintain.task import Split
from quintain.training.config import TrainConfig
from quintain.training.contracts import AsyncLearner, Checkpoint
from quintain.training.run import run_training, trainable
from quintain.training.sampler import TaskSampler

logger = logging.getLogger(__name__)

Evals = Mapping[str, Environment | str]
OnEvent = Callable[[str, dict[str, Json]], None]
"""Called with what happened ("preflight", "eval", "signal", "selected") and its figures."""


async def atrain(
    environment: Environment,
    policy: Policy,
    *,
    config: TrainConfig | None = None,
    evals: Evals | None = None,
    evaluation: EvalSettings | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    checks: bool = True,
    on_event: OnEvent | None = None,
    learner: AsyncLearner | None = None,
    tasks: TaskSampler | None = None,
    host: Mapping[str, Any] | None = None,
    about: Mapping[str, Json] | None = None,
    **settings: Any,
) -> TrainRun:
    """Trains a policy in an environment and picks the checkpoint that deserves to ship.

    Args:
        environment: what is trained on, its tasks of split `train` alone.
        policy: `q.local(…)` or another that takes new weights; it is not closed.
        config: settings; None: `TrainConfig(**settings)`.
        evals: name to environment (or the name of one) by which checkpoints are chosen; the first
            one's held-out split has the last word. None: the training environment itself.
        evaluation: how much is evaluated.
        run: the run's folder; None: a new one under `runs/`, or with `resume` the newest one of
            the same run there.
        resume: go on with what the folder holds; where there is nothing, begin.
        checks: whether to run preflight.
        on_event: told of what happens, for a progress display.
        learner: None: a process of its own for the policy's model.
        tasks: None: the sampler that the settings name.
        host: settings of `Host`: backend, retries, ….
        about: more to store with the run (what started it).
        settings: fields of `TrainConfig` when `config` is None.

    Raises:
        TrainingError: a check failed, or training cannot go on; the run can be resumed.
        ConfigError: a setting is wrong.
    """
    if config is not None and settings:
        raise ConfigError(f"give config or single settings, not both: {sorted(settings)}")
    config = config or _config(settings)
    evaluation = evaluation or EvalSettings()
    measured = _resolve(evals, environment)
    identity = _identity(environment, policy, measured, config)
    folder = _folder(run, environment.name, identity, resume)
    store = Store.begin(
        folder,
        kind="train",
        identity=identity,
        config={
            **provenance(),
            "train": config.model_dump(mode="json"),
            "evaluation": evaluation.model_dump(mode="json"),
            "policy": policy.name,
            "environment": environment.name,
            "artifacts": list(environment.artifacts),
            "seed": config.seed,
            "algorithm": config.resolved().model_dump(mode="json"),
            **(about or {}),
        },
        resume=resume,
    )
    with store:
        flight = Flight(environment, policy, measured, config, evaluation, store, dict(host or {}))
        await _Driver(flight, on_event or (lambda kind, data: None)).drive(
            checks=checks, learner=learner, tasks=tasks
        )
    return TrainRun(folder)


def train(environment: Environment, policy: Policy, **arguments: Any) -> TrainRun:
    """The same as `atrain`, for synchronous code and notebooks; it takes the same arguments."""
    return run_blocking(atrain(environment, policy, **arguments))


class _Driver:
    """One pass through the loop."""

    def __init__(self, flight: Flight, on_event: OnEvent) -> None:
        self.flight = flight
        self.on_event = on_event

    async def drive(
        self, *, checks: bool, learner: AsyncLearner | None, tasks: TaskSampler | None
    ) -> None:
        flight = self.flight
        if checks and not flight.store.checkpoints():
            findings = await preflight(flight)
            for name, found in findings.items():
                self.on_event("preflight", {"check": name, **asdict(found)})
        names = {name: env.name for name, env in flight.evals.items()}
        await flight.store.event(PLANNED, {"evals": names, "steps": flight.config.steps})
        surroundings = Host(
            flight.environment,
            flight.policy,
            store=flight.store,
            run_seed=flight.config.seed,
            **flight.host,
        )
        async with surroundings as host:
            await run_training(
                flight.config,
                host,
                flight.store,
                on_checkpoint=self.evaluate,
                learner=learner,
                tasks=tasks,
            )
        await self._watch()
        async with self._all_threads():
            await self.finish()

    @asynccontextmanager
    async def _all_threads(self) -> AsyncIterator[None]:
        """The policy samples with the evaluation's threads meanwhile, where it can be told."""
        policy, threads = self.flight.policy, self.flight.evaluation.threads
        if threads is None or not isinstance(policy, Local):
            yield
            return
        await policy.use_threads(threads)
        try:
            yield
        finally:
            await policy.use_threads(None)

    async def evaluate(self, checkpoint: Checkpoint) -> None:
        """Evaluates a checkpoint on the eval split of every eval."""
        if checkpoint.policy is not self.flight.policy:
            await self._evaluate(checkpoint)  # beside training, which needs its cores
            return
        async with self._all_threads():
            await self._evaluate(checkpoint)
        await self._watch()

    async def _watch(self) -> None:
        """Tells of signs of reward hacking that were not told before."""
        for signal in await watch(self.flight.store):
            logger.warning("possible reward hacking: %s: %s", signal.kind, signal.detail)
            self.on_event("signal", signal.to_json())

    async def _evaluate(self, checkpoint: Checkpoint) -> None:
        for name in self.flight.evals:
            purpose = eval_purpose(name, checkpoint.version)
            values = await self._measure(
                name, Split.EVAL, purpose, checkpoint.version, policy=checkpoint.policy
            )
            await self.flight.store.metrics(
                checkpoint.step, {f"{name}/{key}": v for key, v in values.items()}, scope="eval"
            )
            self.on_event("eval", {"eval": name, "step": checkpoint.step, **values})

    async def _measure(
        self,
        name: str,
        split: Split,
        purpose: str,
        version: int,
        *,
        greedy: bool = False,
        policy: Policy | None = None,
    ) -> dict[str, float]:
        flight, settings = self.flight, self.flight.evaluation
        environment = flight.evals[name]
        policy = policy or flight.policy
        if policy.version != version:
            raise TrainingError(
                f"{purpose!r} would be measured with version {policy.version} of the policy"
            )
        sampling = flight.config.sampling if environment is flight.environment else None
        if greedy:
            base: Sampling = sampling or environment.sampling
            sampling = base.model_copy(update={"temperature": 0.0})
        heldout = split is Split.HELDOUT
        samples = settings.heldout_samples if heldout else settings.samples
        run = await aevaluate(
            environment,
            policy,
            split=split,
            samples=1 if greedy else samples,
            limit=settings.heldout_limit if heldout else settings.limit,
            concurrency=settings.concurrency,
            sampling=sampling,
            seed=flight.config.seed,
            store=flight.store,
            name=name,
            purpose=purpose,
            retry_errors=True,
            **flight.host,
        )
        if policy.version != version:
            raise TrainingError(
                f"the policy went from version {version} to {policy.version} during {purpose!r}"
            )
        mean = run.mean()
        return {
            "mean": mean.value,
            "low": mean.low,
            "high": mean.high,
            "excluded": float(run.scores.excluded),
        }

    async def finish(self) -> None:
        """Selects a checkpoint and evaluates it, and the untrained policy, on held-out tasks."""
        flight, store = self.flight, self.flight.store
        run = TrainRun(store.folder)
        best, why = run.choose()
        rows = {row.version: row for row in store.checkpoints()}
        first = next(iter(flight.evals))
        # The selected one last: the policy then holds the weights that are to ship.
        for version in dict.fromkeys((0, best.version)):
            row = rows[version]
            path = store.folder / row.path / "model.safetensors"
            await trainable(flight.policy).update(Published(version, path, row.hash))
            for greedy in (False, True) if flight.evaluation.greedy else (False,):
                purpose = heldout_purpose(first, version, greedy=greedy)
                values = await self._measure(first, Split.HELDOUT, purpose, version, greedy=greedy)
                self.on_event("heldout", {"version": version, "greedy": greedy, **values})
        row = rows[best.version]
        await store.event(
            SELECTED,
            {
                "step": best.step,
                "version": best.version,
                "path": row.path,
                "hash": row.hash,
                "why": why,
                "greedy": flight.evaluation.greedy,
            },
        )
        self.on_event("selected", {"step": best.step, "version": best.version, "why": why})


def _config(settings: Mapping[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.model_validate(dict(settings))
    except ValueError as error:
        raise ConfigError(f"training settings: {error}") from error


def _resolve(evals: Evals | None, environment: Environment) -> dict[str, Environment]:
    """The evals as environments; names are looked up."""
    if not evals:
        return {environment.name: environment}
    out: dict[str, Environment] = {}
    for name, given in evals.items():
        if isinstance(given, str):
            table = registry.environments
            key = given
            if given.startswith("bench:"):
                table, key = registry.benchmarks, given.removeprefix("bench:")
            found = table.get(key)
            given = found() if callable(found) else found
        out[name] = given
    return out


def _identity(
    environment: Environment,
    policy: Policy,
    evals: Mapping[str, Environment],
    config: TrainConfig,
) -> dict[str, Json]:
    """What must be the same for a resumed run to be the same run."""
    free = {"steps", "max_concurrent_rollouts", "learner_threads", "micro_tokens"}
    spec = getattr(policy, "spec", None)
    model = asdict(spec) if is_dataclass(spec) and not isinstance(spec, type) else {}
    return {
        "environment": environment.name,
        "policy": policy.name,
        # Where and with how many threads a model runs does not make it another one.
        "model": {key: model[key] for key in model if key not in ("threads", "device")},
        "evals": {name: env.name for name, env in evals.items()},
        "train": config.model_dump(mode="json", exclude=free),
    }


def _folder(
    run: str | Path | None, environment: str, identity: Mapping[str, Json], resume: bool
) -> Path:
    if run is not None:
        return Path(run)
    if resume:
        for found in sorted(Path("runs").glob("*/run.sqlite"), reverse=True):
            with suppress(StoreError), Store.read(found.parent) as store:
                same = canonical(store.meta("identity")) == canonical(identity)
                if store.meta("kind") == "train" and same:
                    return found.parent
    return new_folder(f"train-{environment}")
