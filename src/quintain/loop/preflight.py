"""Checks before training: each is a function in a table, each result is stored with the run.

A check that fails stops the run before it costs anything; a warning is told and kept. A folder that
brings a new kind of check adds a row to `CHECKS`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from quintain.audits.measure import aaudit
from quintain.audits.trials import PASSES
from quintain.errors import ConfigError, TaskError, TrainingError
from quintain.evals import aevaluate
from quintain.loop.settings import EvalSettings
from quintain.messages import Message
from quintain.policies.scripted import Scripted
from quintain.protocols import Environment, Policy
from quintain.record import digest
from quintain.rollouts import Host, Job, rollout
from quintain.store import Store
from quintain.task import Split, Task
from quintain.training.config import TrainConfig
from quintain.training.run import trainable
from quintain.training.sampler import refuse_unless_train

logger = logging.getLogger(__name__)
LOOKED_AT = 5000
"""Tasks of each split that are compared with each other."""
GOLDS_LOOKED_AT = 500
"""Tasks of each split whose golds are checked."""
FREE_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Flight:
    """What the checks look at."""

    environment: Environment
    policy: Policy
    evals: Mapping[str, Environment]
    config: TrainConfig
    evaluation: EvalSettings
    store: Store
    host: Mapping[str, Any]
    """Settings of `Host`: backend, retries, …."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    level: Literal["ok", "warning", "error", "skipped"]
    message: str


Check = Callable[[Flight], Awaitable[Finding]]


async def policy_is_trainable(flight: Flight) -> Finding:
    """The policy takes new weights, and the sampling can be learned from."""
    policy = trainable(flight.policy)
    sampling = flight.config.sampling or flight.environment.sampling
    flight.config.learner_options(sampling, lora=policy.spec.lora is not None)
    return Finding("ok", f"{flight.policy.name} is trainable, sampled at T={sampling.temperature}")


async def store_is_writable(flight: Flight) -> Finding:
    """The run's folder takes writes, and the disk has room."""
    await flight.store.set_meta("preflight.probe", True)
    free = shutil.disk_usage(flight.store.folder).free
    text = f"{free / 1e9:.1f} GB free in {flight.store.folder}"
    return Finding("ok" if free > FREE_BYTES else "warning", text)


async def splits_are_disjoint(flight: Flight) -> Finding:
    """No task to train on is also measured, by id or by what is asked; every split has tasks."""
    train = list(islice(flight.environment.tasks.split(Split.TRAIN), LOOKED_AT))
    if not train:
        return Finding("error", f"{flight.environment.name} has no task of split 'train'")
    for task in train:
        refuse_unless_train(task)
    asked = {_content(task): task.id for task in train}
    ids = {task.id for task in train}
    counts = [f"{len(train)} train"]
    for name, environment in flight.evals.items():
        for split in (Split.EVAL, Split.HELDOUT):
            measured = list(islice(environment.tasks.split(split), LOOKED_AT))
            if not measured:
                return Finding("error", f"eval {name!r} has no task of split {str(split)!r}")
            counts.append(f"{len(measured)} {name}:{split}")
            for task in measured:
                same = asked.get(_content(task))
                # Ids are unique within an environment only.
                if environment is flight.environment and task.id in ids:
                    same = task.id
                if same is not None:
                    return Finding(
                        "error",
                        f"task {task.id!r} of {name}:{split} is also trained on, as {same!r}",
                    )
    return Finding("ok", "no task in two splits: " + ", ".join(counts))


def _content(task: Task) -> str:
    """What a task asks, whatever it is called."""
    prompt = [message.model_dump(mode="json") for message in task.prompt]
    files = {path: digest(data) for path, data in task.files.items()}
    return digest(prompt, task.world, files)


async def golds_are_sound(flight: Flight) -> Finding:
    """What the verifier compares with is whole, and no wrong answer would pass for it by design.

    Asks the verifier (its `check_gold`, where it has one) about the first tasks of each split.
    """
    check = getattr(flight.environment.verifier, "check_gold", None)
    if check is None:
        return Finding("ok", f"{flight.environment.verifier.name} has no golds to check")
    asked = 0
    for split in Split:
        for task in islice(flight.environment.tasks.split(split), GOLDS_LOOKED_AT):
            try:
                await asyncio.to_thread(check, task)
            except TaskError as error:
                return Finding("error", str(error))
            asked += 1
    return Finding("ok", f"the golds of {asked} tasks are sound")


async def verifier_tells_right_from_wrong(flight: Flight) -> Finding:
    """On a sample of tasks the oracle earns 1, an empty answer and every fake earn 0."""
    tried = 0
    oracle = getattr(flight.environment, "oracle", None)
    fakes = getattr(flight.environment, "fakes", None)
    for split in Split:
        for task in islice(flight.environment.tasks.split(split), flight.evaluation.gold_tasks):
            scripts: list[tuple[str, list[Message] | str, bool]] = [("an empty answer", "", False)]
            if oracle is not None:
                scripts.append(("the oracle", list(oracle(task)), True))
            if fakes is not None:
                scripts.extend(("a fake", list(fake), False) for fake in fakes(task))
            for what, script, right in scripts:
                problem = await _judge(flight, task, what, script, right)
                if problem:
                    return Finding("error", problem)
            tried += 1
    if oracle is None:
        return Finding(
            "warning",
            f"an empty answer earns 0 on {tried} tasks; the environment has no oracle, so that a "
            "right answer earns 1 is not known",
        )
    return Finding("ok", f"oracle 1, empty answer and fakes 0, on {tried} tasks")


async def _judge(
    flight: Flight, task: Task, what: str, script: list[Message] | str, right: bool
) -> str:
    """What is wrong with the reward that a script earns; empty when nothing is."""
    host = Host(flight.environment, Scripted(script), **flight.host)
    async with host:
        trajectory = await rollout(Job(task, "preflight"), host)
    if trajectory.error is not None:
        fault = trajectory.error
        return f"task {task.id!r}: {fault.type} in {fault.stage}: {fault.message}"
    reward = trajectory.reward
    if (reward == 1.0) is right and (right or reward == 0.0 or reward is None):
        return ""
    return f"task {task.id!r}: {what} earns {reward}, expected {1.0 if right else 0.0}"


async def base_rate_has_signal(flight: Flight) -> Finding:
    """The untrained policy solves some training samples and fails some."""
    if not flight.evaluation.signal_tasks:
        return Finding("skipped", "signal_tasks is 0")
    tasks = list(
        islice(flight.environment.tasks.split(Split.TRAIN), flight.evaluation.signal_tasks)
    )
    run = await aevaluate(
        flight.environment,
        flight.policy,
        split=Split.TRAIN,
        tasks=tasks,
        samples=flight.evaluation.signal_samples,
        sampling=flight.config.sampling,
        seed=flight.config.seed,
        concurrency=flight.evaluation.concurrency,
        store=flight.store,
        name="preflight",
        purpose="preflight:signal",
        **flight.host,
    )
    rate = run.pass_at(1).value
    text = f"base pass rate {rate:.2f} on {len(tasks)} training tasks"
    if rate in (0.0, 1.0) or rate != rate:
        return Finding(
            "warning",
            f"{text}: groups whose rewards are all equal teach nothing; "
            + ("ease the tasks or warm the policy up first" if rate != 1 else "harden the tasks"),
        )
    return Finding("ok", text)


async def verifier_withstands_attacks(flight: Flight) -> Finding:
    """Right submissions pass, wrong ones do not, and no verdict depends on order or load."""
    if not flight.evaluation.audit_tasks:
        return Finding("skipped", "no audit was asked for (audit_tasks is 0)")
    report = await aaudit(
        flight.environment,
        tasks=list(
            islice(flight.environment.tasks.split(Split.TRAIN), flight.evaluation.audit_tasks)
        ),
        seed=flight.config.seed,
        passes=PASSES[:2],
        mutants=0,
        **flight.host,
    )
    await flight.store.event("audit", report.to_json())
    problems = report.problems(flight.evaluation.audit_bound)
    if problems:
        shown = "; ".join(f"{found.title} ({found.submission})" for found in report.findings[:3])
        return Finding("error", f"{'; '.join(problems)}: {shown}")
    wrong = f"wrong submissions that pass: {report.false_positives}"
    if not report.has_gold:
        return Finding("warning", f"{wrong}; no right submission is known")
    return Finding("ok", f"{wrong}; right ones that fail: {report.false_negatives}")


CHECKS: dict[str, Check] = {
    "policy": policy_is_trainable,
    "store": store_is_writable,
    "splits": splits_are_disjoint,
    "golds": golds_are_sound,
    "verifier": verifier_tells_right_from_wrong,
    "audit": verifier_withstands_attacks,
    "signal": base_rate_has_signal,
}
"""In the order in which they run: cheap ones first."""


async def preflight(flight: Flight, checks: Mapping[str, Check] = CHECKS) -> dict[str, Finding]:
    """Runs the checks and stores what they found.

    Raises:
        TrainingError: one or more failed; all are listed.
    """
    findings: dict[str, Finding] = {}
    for name, check in checks.items():
        try:
            findings[name] = await check(flight)
        except (ConfigError, TrainingError) as error:
            findings[name] = Finding("error", str(error))
        await flight.store.event("preflight", {"check": name, **asdict(findings[name])})
        if findings[name].level == "warning":
            logger.warning("preflight %s: %s", name, findings[name].message)
    failed = {name: found for name, found in findings.items() if found.level == "error"}
    if failed:
        listed = "\n".join(f"  {name}: {found.message}" for name, found in failed.items())
        raise TrainingError(f"not training, {len(failed)} of the checks failed:\n{listed}")
    return findings
