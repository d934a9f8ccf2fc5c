"""One attempt at one sample: sandbox, episode, harness, verdict, in a straight walk.

The one place where faults are caught. What the host caused ends the attempt with an outcome that
has no reward; a limit ends the episode, and the verifier still judges. Errors of the caller's own
making (`ConfigError`) and cancellation pass through. Whatever was opened is closed, in the reverse
order, under a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from quintain.errors import (
    ConfigError,
    EnvironmentFault,
    HarnessError,
    PolicyError,
    QuintainError,
    RolloutError,
    SandboxError,
    VerifierError,
    boundary,
)
from quintain.protocols import (
    WORLD_ARTIFACT,
    Episode,
    JudgeContext,
    NetworkLog,
    Policy,
    Sandbox,
)
from quintain.record import canonical
from quintain.rollouts.acting import Acting
from quintain.rollouts.host import Host, Job
from quintain.rollouts.observer import Stage as Doing
from quintain.rollouts.recorder import EpisodeRecorder
from quintain.store import blob_hash, now
from quintain.trajectory import Event, Fault, StopReason, Timing, Trajectory
from quintain.verdict import Outcome, Verdict
from quintain.verifiers.patterns import with_patterns

logger = logging.getLogger(__name__)

Stage = Literal["queue", "sandbox", "environment", "policy", "harness", "verifier"]

GatheredJudge = Callable[[JudgeContext], Awaitable[Verdict]]
MAX_ARTIFACT_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _Walk:
    """What one attempt has got so far."""

    job: Job
    host: Host
    recorder: EpisodeRecorder
    seed: int
    number: int
    began: float
    queue_s: float
    gathered: GatheredJudge | None = None
    started: str = field(default_factory=now)
    stage: Stage = "sandbox"
    sandbox: Sandbox | None = None
    opened_s: float = 0.0
    """When the sandbox was opened, since the attempt began."""
    network: list[Event] = field(default_factory=list)
    """What the sandbox asked of the network."""
    episode: Episode | None = None
    stop: StopReason = StopReason.ERROR
    setup_s: float = 0.0
    verify_s: float = 0.0
    verdict: Verdict | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    def tell(self, doing: Doing) -> None:
        """Tells the run's observer, if there is one, what goes on."""
        if self.host.observer is not None:
            self.host.observer.enters(self.job, doing)

    def policy(self) -> Policy:
        """The policy as this rollout sees it."""
        observer = self.host.observer
        acted = None if observer is None else partial(observer.acts, self.job)
        acting: Policy = Acting(self.host.policy, self.recorder, self.tell, acted)
        return acting

    def seal(self, outcome: Outcome | None = None, error: Fault | None = None) -> Trajectory:
        """The trajectory as it stands."""
        recorder = self.recorder
        return Trajectory(
            environment=self.host.environment.name,
            task_id=self.job.task.id,
            policy=self.host.policy.name,
            purpose=self.job.purpose,
            sample_index=self.job.sample_index,
            attempt=self.number,
            seed=self.seed,
            started=self.started,
            tools=recorder.tools,
            opening=recorder.opening,
            steps=tuple(recorder.taken),
            stop=self.stop,
            outcome=outcome,
            verdict=self.verdict,
            error=error,
            artifacts=self.artifacts,
            events=tuple(sorted([*recorder.events, *self.network], key=lambda event: event.at_s)),
            usage=recorder.usage,
            timing=Timing(
                queue_s=self.queue_s,
                setup_s=self.setup_s,
                policy_s=recorder.policy_s,
                env_s=recorder.env_s,
                verify_s=self.verify_s,
                total_s=time.monotonic() - self.began,
            ),
        )


async def attempt(
    job: Job,
    host: Host,
    number: int = 0,
    *,
    queue_s: float = 0.0,
    gathered: GatheredJudge | None = None,
) -> tuple[Trajectory, dict[str, bytes]]:
    """Plays and judges one sample once.

    Args:
        job: which sample.
        host: the run's surroundings, entered.
        number: which attempt this is.
        queue_s: how long the job waited to be started.
        gathered: judges it together with others, under a deadline of its own; None: the
            environment's verifier judges it alone.

    Returns:
        The trajectory with its outcome, and the contents of its artifacts by hash.

    Raises:
        ConfigError: the run is set up wrongly; every attempt would fail.
    """
    seed = job.seed(host.run_seed)
    session = host.session(job, number)
    sampling = host.sampling or host.environment.sampling
    walk = _Walk(
        job=job,
        host=host,
        recorder=EpisodeRecorder(session, seed, sampling),
        seed=seed,
        number=number,
        began=time.monotonic(),
        queue_s=queue_s,
        gathered=gathered,
    )
    try:
        try:
            await _set_up(walk)
            await _play(walk)
            await _judge(walk)
        finally:
            await _close(walk)
    except ConfigError:
        raise
    except QuintainError as error:
        logger.info("task %s: fault in %s", job.task.id, walk.stage, exc_info=error)
        walk.stop = StopReason.ERROR
        walk.verdict = None
        fault = Fault(
            type=type(error).__name__, stage=_stage_of(error, walk.stage), message=str(error)
        )
        return walk.seal(_outcome_of(error, walk.stage), fault), walk.blobs
    assert walk.verdict is not None
    return walk.seal(walk.verdict.outcome), walk.blobs


async def _set_up(walk: _Walk) -> None:
    host, task = walk.host, walk.job.task
    walk.tell("setup")
    spec = host.sandbox_of(task)
    public = task.public()
    if spec is not None:
        await host.prepare(spec)
        walk.began = time.monotonic()  # a build is the time of no rollout
        walk.sandbox = await host.open_sandbox(spec)
        walk.opened_s = time.monotonic() - walk.began
        _tell_weakness(walk, walk.sandbox)
        await _keep_network(walk, walk.sandbox)  # its clock starts now
        for path, data in task.files.items():
            with boundary(SandboxError, f"writing {path}"):
                await walk.sandbox.write(path, data)
    walk.stage = "environment"
    with boundary(EnvironmentFault, f"opening task {task.id}"):
        async with asyncio.timeout(host.setup_s):
            walk.episode = await host.environment.open(public, task.world, walk.sandbox, walk.seed)
    walk.setup_s = time.monotonic() - walk.began


def _tell_weakness(walk: _Walk, sandbox: Sandbox) -> None:
    """Records on the trajectory what its sandbox does not enforce."""
    missing = sorted(getattr(sandbox, "missing", {}))
    isolation = getattr(sandbox, "isolation", "")
    if missing or isolation == "weak":
        walk.recorder.event("sandbox.weaker", {"isolation": isolation, "missing": missing})


async def _play(walk: _Walk) -> None:
    host = walk.host
    walk.stage = "harness"
    walk.tell("environment")
    limits = host.limits_of(walk.job.task)
    assert walk.episode is not None
    assert host.harness is not None
    try:
        async with asyncio.timeout(limits.wall_s) as deadline:
            with boundary(HarnessError, f"harness {host.harness.name}"):
                walk.stop = await host.harness.play(
                    walk.episode, walk.policy(), limits, walk.recorder
                )
    except TimeoutError:
        if not deadline.expired():
            raise
        walk.stop = StopReason.WALL
    _keep_world(walk)
    if walk.sandbox is not None:
        walk.stage = "sandbox"
        await _keep_artifacts(walk, walk.sandbox)
        await _keep_network(walk, walk.sandbox)


def _keep_world(walk: _Walk) -> None:
    world = getattr(walk.episode, "world", None)
    if world is None:
        return
    with boundary(EnvironmentFault, "keeping the episode's world"):
        data = canonical(world).encode()
    name = blob_hash(data)
    walk.blobs[name] = data
    walk.artifacts[WORLD_ARTIFACT] = name


async def _keep_artifacts(walk: _Walk, sandbox: Sandbox) -> None:
    for path in walk.host.environment.artifacts:
        try:
            data = await sandbox.read(path, max_bytes=MAX_ARTIFACT_BYTES)
        except FileNotFoundError:
            continue
        except QuintainError:
            raise
        except OSError as error:
            # Too big, a directory, unreadable: the candidate's doing, and worth telling.
            walk.recorder.event("artifact.unreadable", {"path": path, "error": str(error)})
            continue
        name = blob_hash(data)
        walk.blobs[name] = data
        walk.artifacts[path] = name


async def _keep_network(walk: _Walk, sandbox: Sandbox) -> None:
    """Takes the sandbox's network log as events of the trajectory; what was taken is replaced."""
    if "network_log" not in sandbox.capabilities:
        return
    assert isinstance(sandbox, NetworkLog)
    with boundary(SandboxError, "reading the network log"):
        events = await sandbox.network_log()
    walk.network = [
        event.model_copy(update={"at_s": event.at_s + walk.opened_s}) for event in events
    ]


async def _judge(walk: _Walk) -> None:
    host = walk.host
    walk.stage = "verifier"
    walk.tell("verifier")
    began = time.monotonic()
    verifier = host.environment.verifier

    def artifact(path: str) -> bytes | None:
        name = walk.artifacts.get(path)
        return None if name is None else walk.blobs[name]

    context = JudgeContext(
        task=walk.job.task,
        trajectory=walk.seal(),
        sandbox=walk.sandbox,
        open_sandbox=host.open_sandbox,
        workers=host.workers,
        deadline=began + host.judge_s,
        artifact=artifact,
    )
    try:
        with boundary(VerifierError, f"verifier {verifier.name}"):
            if walk.gathered is not None:
                verdict = await walk.gathered(context)
            else:
                async with asyncio.timeout(host.judge_s):
                    verdict = await verifier.judge(context)
    finally:
        walk.verify_s = time.monotonic() - began
    if not host.environment.graded and verdict.reward not in (None, 0.0, 1.0):
        raise VerifierError(
            f"verifier {verifier.name} gave reward {verdict.reward!r}; rewards are 0 or 1 unless "
            "the environment says graded=True"
        )
    walk.verdict = with_patterns(verdict, context.trajectory)


async def _close(walk: _Walk) -> None:
    """Closes the episode, then the sandbox; each under a deadline, also when cancelled."""
    host = walk.host
    if walk.episode is not None:
        await _closing(walk, walk.episode.close(), EnvironmentFault, "closing the episode")
    if walk.sandbox is not None:
        log = _keep_network(walk, walk.sandbox)
        await _closing(walk, log, SandboxError, "reading the network log")
        if host.keep_sandbox:
            host.kept.append(walk.sandbox)
        else:
            await _closing(walk, walk.sandbox.close(), SandboxError, "closing the sandbox")


async def _closing(
    walk: _Walk, closing: Awaitable[None], kind: type[RolloutError], what: str
) -> None:
    try:
        with boundary(kind, what):
            async with asyncio.timeout(walk.host.close_s):
                await closing
    except RolloutError as error:
        # The verdict stands: what is left behind is told, and swept with the backend.
        walk.recorder.event("close.failed", {"what": what, "error": str(error)})


def _outcome_of(error: QuintainError, stage: Stage) -> Outcome:
    if isinstance(error, PolicyError):
        return Outcome.POLICY_ERROR
    if isinstance(error, VerifierError):
        return Outcome.VERIFIER_ERROR
    if isinstance(error, RolloutError):
        return Outcome.INFRA_ERROR
    return Outcome.VERIFIER_ERROR if stage == "verifier" else Outcome.INFRA_ERROR


def _stage_of(error: QuintainError, stage: Stage) -> Stage:
    if isinstance(error, PolicyError):
        return "policy"
    if isinstance(error, SandboxError):
        return "sandbox"
    if isinstance(error, EnvironmentFault):
        return "environment"
    return stage


def retryable(trajectory: Trajectory) -> bool:
    """Whether another attempt may help: a fault of the host that is not final by its nature."""
    return (
        trajectory.outcome is not None
        and trajectory.outcome.host_fault
        and trajectory.error is not None
        and trajectory.error.type
        not in {
            "IsolationError",
            "CapabilityError",
            "TaskError",
            "RegistryError",
            "PolicyRefused",
        }
    )
