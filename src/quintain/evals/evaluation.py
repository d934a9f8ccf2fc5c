"""Runs an environment k times per task and stores what comes of it.

A run that was stopped (a budget, Ctrl-C, a crash) is resumed by the same call with `resume=True`:
what is stored is not run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from quintain.config import provenance
from quintain.errors import ConfigError, QuintainError
from quintain.evals.run import BEGUN, ENDED, EvalRun, spent
from quintain.messages import Sampling
from quintain.protocols import Environment, Policy
from quintain.record import Json, digest
from quintain.rollouts import Budget, Host, Job, Progress, run_blocking, schedule
from quintain.rollouts.host import jobs_of
from quintain.store import Store, new_folder
from quintain.task import Split, Task
from quintain.trajectory import TRAIN, Trajectory
from quintain.verdict import Outcome

logger = logging.getLogger(__name__)

OnDone = Callable[[Trajectory, Progress], None]

MAX_TASKS = 100_000
"""A split with more tasks counts as endless: then a limit is asked for."""


def purpose_of(name: str, split: Split | str, version: int = 0) -> str:
    """What an eval's samples are stored under: it names the split and the policy's version."""
    return f"{name}:{Split(split)}@v{version}"


async def aevaluate(
    environment: Environment,
    policy: Policy,
    *,
    split: Split | str = Split.EVAL,
    samples: int = 1,
    limit: int | None = None,
    tasks: Iterable[Task] | None = None,
    only: Sequence[str] = (),
    concurrency: int = 16,
    max_cost_usd: float | None = None,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    run: str | Path | None = None,
    store: Store | None = None,
    name: str = "eval",
    purpose: str | None = None,
    resume: bool = False,
    retry_errors: bool = False,
    on_done: OnDone | None = None,
    progress: Progress | None = None,
    config: dict[str, Json] | None = None,
    **host: Any,
) -> EvalRun:
    """Rolls out `samples` samples of each task of a split and summarises them.

    Args:
        environment: what is run.
        policy: who plays; it is not closed.
        split: which tasks.
        samples: of each task.
        limit: how many tasks; None: all.
        tasks: these instead of the split's.
        only: samples to run and no others, as "TASK" or "TASK:SAMPLE".
        concurrency: rollouts at once.
        max_cost_usd: stops admitting when that much is spent; the run can be resumed.
        max_tokens: the same for sampled tokens.
        sampling: instead of the environment's.
        seed: of the run; every sample's seed follows from it.
        run: folder to store in; None: a new one under `runs/`.
        store: a store open for writing instead, of a training run say; it is not closed.
        name: of the eval, the first part of its purpose.
        purpose: what samples are stored under; None: `purpose_of(name, split, policy.version)`.
        resume: go on with what the folder holds.
        retry_errors: run samples again that ended in a fault of the host.
        on_done: called after each sample.
        progress: an object to count in, shared with whoever shows it.
        config: more to store with the run (what started it).
        host: further settings of `quintain.rollouts.Host`: limits, harness, backend, retries, ….

    Raises:
        ConfigError: no such tasks, an endless split without a limit, a folder in use, or a setting
            under which every sample would fail; what is stored stays.
    """
    split = Split(split)
    if samples < 1:
        raise ConfigError(f"samples is at least 1, got {samples}")
    purpose = purpose or purpose_of(name, split, policy.version)
    if purpose == TRAIN:
        raise ConfigError(f"purpose {TRAIN!r} is for training rollouts; give the eval another")
    chosen = _tasks(environment, split, limit, tasks)
    jobs = _only(jobs_of(chosen, purpose, samples), only, environment, purpose)
    begun: dict[str, Json] = {
        "purpose": purpose,
        "environment": environment.name,
        "policy": policy.name,
        "policy_version": policy.version,
        "split": str(split),
        "tasks": len(chosen),
        "samples": samples,
        "planned": len(jobs),
        "seed": seed,
        "sampling": (sampling or environment.sampling).model_dump(mode="json"),
        "sampling_given": sampling is not None,
        "concurrency": concurrency,
        "max_cost_usd": max_cost_usd,
        "max_tokens": max_tokens,
        "only": list(only),
        "artifacts": list(environment.artifacts),
    }
    own = store is None
    if store is None:
        store = Store.begin(
            Path(run) if run is not None else new_folder(environment.name),
            kind="eval",
            identity={
                **{key: begun[key] for key in ("environment", "policy", "seed", "sampling")},
                "purpose": purpose,
            },
            config={**provenance(), **begun, **(config or {})},
            resume=resume,
        )
    try:
        contents = {task.id: digest(task.model_dump_json()) for task in chosen}
        _refuse_changed(store, purpose, environment.name, contents)
        await store.event(BEGUN, {**begun, "contents": contents})
        if retry_errors:
            faults = [str(outcome) for outcome in Outcome if outcome.host_fault]
            again = await store.unfinal(purpose, faults)
            logger.info("%s: %d samples with errors run again", purpose, again)
        surroundings = Host(
            environment,
            policy,
            store=store,
            run_seed=seed,
            sampling=sampling,
            budget=_budget(store, begun),
            **host,
        )
        async with surroundings:
            ended = await _run(jobs, surroundings, concurrency, on_done, progress)
        await store.event(
            ENDED,
            {"purpose": purpose, "environment": environment.name, "stopped": ended.stopped},
        )
    finally:
        if own:
            store.close()
    return EvalRun(Store.read(store.folder) if own else store, purpose, environment.name)


def _budget(store: Store, begun: dict[str, Json]) -> Budget:
    """What this eval may spend; what it spent before it was stopped counts, every attempt of it."""
    used = spent(store, begun["purpose"], begun["environment"])
    return Budget(begun["max_cost_usd"], begun["max_tokens"], *used)


async def _run(
    jobs: Sequence[Job],
    host: Host,
    concurrency: int,
    on_done: OnDone | None,
    progress: Progress | None,
) -> Progress:
    if progress is not None and progress.total is None:
        progress.total = len(jobs)
    try:
        return await schedule(
            jobs, host, concurrency=concurrency, on_done=on_done, progress=progress
        )
    except BaseExceptionGroup as group:
        # A wrong setting fails every worker alike: one plain error says it better.
        wrong = _first(group)
        if wrong is None:
            raise
        raise wrong from None


def _first(group: BaseExceptionGroup[BaseException]) -> QuintainError | None:
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, QuintainError):
            return found
    return None


def evaluate(
    environment: Environment,
    policy: Policy,
    *,
    split: Split | str = Split.EVAL,
    samples: int = 1,
    limit: int | None = None,
    concurrency: int = 16,
    max_cost_usd: float | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    run: str | Path | None = None,
    resume: bool = False,
    **more: Any,
) -> EvalRun:
    """The same as `aevaluate`, for synchronous code and notebooks; it takes the same arguments."""
    return run_blocking(
        aevaluate(
            environment,
            policy,
            split=split,
            samples=samples,
            limit=limit,
            concurrency=concurrency,
            max_cost_usd=max_cost_usd,
            sampling=sampling,
            seed=seed,
            run=run,
            resume=resume,
            **more,
        )
    )


def _refuse_changed(
    store: Store, purpose: str, environment: str, contents: Mapping[str, str]
) -> None:
    """Raises ConfigError when a task that this eval has begun before is another one now."""
    for _, _, data in store.event_rows(BEGUN):
        if (data["purpose"], data["environment"]) != (purpose, environment):
            continue
        before = data.get("contents", {})
        for task_id, content in contents.items():
            if before.get(task_id, content) != content:
                raise ConfigError(
                    f"cannot resume {store.folder}: task {task_id!r} is not what it was (its "
                    "prompt, answer, files or limits); use the tasks as they were, or another "
                    "folder"
                )
        if before and not before.keys() & contents.keys():
            raise ConfigError(
                f"cannot resume {store.folder}: none of its {len(before)} tasks is among the "
                f"{len(contents)} of this call; is it another environment of the same name?"
            )


def _tasks(
    environment: Environment, split: Split, limit: int | None, given: Iterable[Task] | None
) -> list[Task]:
    """The tasks to run, without repetitions of an id."""
    source = iter(given) if given is not None else environment.tasks.split(split)
    chosen = list(islice(source, MAX_TASKS + 1 if limit is None else limit))
    if len(chosen) > MAX_TASKS and limit is None:
        raise ConfigError(
            f"the {split} split of {environment.name} has more than {MAX_TASKS} tasks, or no end: "
            "give a limit"
        )
    if not chosen:
        filled = [str(s) for s in Split if next(iter(environment.tasks.split(s)), None) is not None]
        raise ConfigError(
            f"{environment.name} has no tasks in the {split} split; "
            f"there are some in: {', '.join(filled) or 'none'}"
        )
    if len({task.id for task in chosen}) != len(chosen):
        raise ConfigError("two of the tasks have the same id")
    return chosen


def _only(
    jobs: list[Job], only: Sequence[str], environment: Environment, purpose: str
) -> list[Job]:
    """The jobs named by "TASK" or "TASK:SAMPLE"; a sample beyond those planned is added."""
    if not only:
        return jobs
    by_task: dict[str, list[Job]] = {}
    for job in jobs:
        by_task.setdefault(job.task.id, []).append(job)
    out: list[Job] = []
    for name in only:
        task_id, colon, number = name.rpartition(":")
        if name in by_task:
            out.extend(by_task[name])
        elif colon and number.isdecimal():
            known = by_task.get(task_id)
            task = known[0].task if known else environment.tasks.get(task_id)
            out.append(Job(task=task, purpose=purpose, sample_index=int(number)))
        else:
            task = environment.tasks.get(name)
            samples = max(job.sample_index for job in jobs) + 1
            out.extend(Job(task, purpose, index) for index in range(samples))
    return list({(job.task.id, job.sample_index): job for job in out}.values())
