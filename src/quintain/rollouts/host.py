"""What the rollouts of one run share: environment, policy, sandboxes, workers, store, budget."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType

from quintain import registry
from quintain.errors import ConfigError, SandboxError, SandboxTimeout, boundary
from quintain.messages import Sampling
from quintain.protocols import (
    Environment,
    Harness,
    Policy,
    PreparesImages,
    Sandbox,
    SandboxBackend,
    Workers,
)
from quintain.record import Json, derive_seed, digest
from quintain.rollouts.observer import Observer
from quintain.sandbox.choose import Choice, Sandboxes, choose
from quintain.sandbox.pool import Pool, counts
from quintain.store import Store
from quintain.task import Limits, SandboxSpec, Task
from quintain.trajectory import Trajectory
from quintain.verifiers.workers import WorkerPool

CHOSEN, POOLED = "sandboxes.chosen", "sandboxes.pooled"
"""Events in the store: fresh, pooled or reused, and why; what a pool did, as counts."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sample of one task to be rolled out."""

    task: Task
    purpose: str
    """"train", or an eval's id that names the policy version."""
    sample_index: int = 0

    def seed(self, run_seed: int) -> int:
        """The seed of this sample: the same at every attempt and in every process."""
        return derive_seed(run_seed, self.purpose, self.task.id, self.sample_index)


@dataclass(slots=True)
class Budget:
    """What a run may spend. An exhausted budget stops admission; what runs is finished."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    """Sampled tokens."""
    cost_usd: float = 0.0
    tokens: int = 0

    def spend(self, trajectory: Trajectory) -> None:
        """Counts what a rollout used."""
        self.cost_usd += trajectory.usage.cost_usd
        self.tokens += trajectory.usage.completion_tokens

    @property
    def exhausted(self) -> str:
        """Which bound is reached, in words; empty while none is."""
        if self.max_cost_usd is not None and self.cost_usd >= self.max_cost_usd:
            return f"${self.cost_usd:.4f} of ${self.max_cost_usd:g} spent"
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            return f"{self.tokens} of {self.max_tokens} tokens sampled"
        return ""


@dataclass(slots=True)
class Host:
    """The shared surroundings of a run's rollouts; an async context manager.

    Sandboxes and workers are opened when first asked for, and closed with the host.
    """

    environment: Environment
    policy: Policy
    store: Store | None = None
    """None: nothing is kept (a trial rollout)."""
    run_seed: int = 0
    sampling: Sampling | None = None
    """Overrides the environment's."""
    limits: Limits | None = None
    """Overrides the environment's and the task's."""
    harness: Harness | None = None
    """None: the plain loop."""
    backend: str | SandboxBackend = "native"
    allow_weaker: bool = False
    """Go on where the sandbox cannot enforce all that is asked for."""
    sandboxes: Sandboxes = "fresh"
    """A new one whenever one is needed; from a single-use pool; reset, proved and used again; or
    "auto": as times measured at the first one say (see `quintain.sandbox.choose`)."""
    retries: int = 2
    """Further attempts after a fault of the host."""
    backoff_s: float = 0.5
    """Wait before the second attempt; doubles each time."""
    setup_s: float = 60.0
    """Deadline for opening an episode."""
    judge_s: float = 300.0
    """Deadline for a verdict."""
    gather_s: float = 7200.0
    """How long a member of a group that is judged together waits for the others."""
    close_s: float = 30.0
    """Deadline for closing a sandbox or an episode."""
    hash_seed: int | None = None
    """`PYTHONHASHSEED` of the worker processes; None: this process's own setting."""
    budget: Budget = field(default_factory=Budget)
    again: Callable[[Trajectory], Awaitable[bool]] | None = None
    """Asked of each rollout that has come to its last attempt: whether the attempts are to begin
    anew, of which the host spoiled the last; it may wait before it answers."""
    observer: Observer | None = None
    """Told what every rollout is doing."""
    keep_sandbox: bool = False
    """Leave sandboxes open after the verdict, for a look inside; `kept` lists them."""
    kept: list[Sandbox] = field(default_factory=list)
    chosen: Choice | None = None
    """What `sandboxes` came to, once a sandbox was opened."""
    _backend: SandboxBackend | None = None
    _choosing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _workers: WorkerPool | None = None
    _own: str = field(default_factory=lambda: secrets.token_hex(8))

    def session(self, job: Job, attempt: int) -> str:
        """What the policy knows one attempt at a sample by: no other rollout has that name.

        The host's own part keeps two evals with equal seeds under one policy apart.
        """
        return digest(self._own, self.environment.name, job.seed(self.run_seed), attempt)

    async def __aenter__(self) -> Host:
        if isinstance(self.backend, str):
            registry.sandboxes.target(self.backend)  # a wrong name fails now, not every rollout
        if self.harness is None:
            self.harness = registry.harnesses.get("loop")()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes sandboxes and workers; may be called twice."""
        backend, self._backend = self._backend, None
        workers, self._workers = self._workers, None
        try:
            if backend is not None and (
                isinstance(self.backend, str) or backend is not self.backend
            ):
                await backend.close()
            if isinstance(backend, Pool) and backend is not self.backend:
                await self._tell(POOLED, counts(backend.stats))
        finally:
            if workers is not None:
                await workers.close()

    async def _tell(self, kind: str, data: dict[str, Json]) -> None:
        if self.store is not None:
            await self.store.event(kind, {"environment": self.environment.name, **data})

    @property
    def workers(self) -> Workers:
        """The killable worker processes, started when first asked for."""
        if self._workers is None:
            self._workers = WorkerPool(hash_seed=self.hash_seed)
        return self._workers

    async def _sandboxes(self, spec: SandboxSpec) -> SandboxBackend:
        async with self._choosing:
            if self._backend is None:
                self._backend = await self._begin(spec)
            return self._backend

    async def _begin(self, spec: SandboxSpec) -> SandboxBackend:
        """The backend of this run, behind a pool where that is asked for or worth it."""
        own = isinstance(self.backend, str)
        inner: SandboxBackend
        if isinstance(self.backend, str):
            inner = registry.sandboxes.get(self.backend)(allow_weaker=self.allow_weaker)
        else:
            inner = self.backend
        try:
            if self.sandboxes == "auto":
                self.chosen = await choose(inner, spec)
            else:
                self.chosen = Choice(self.sandboxes, "as the settings say", {})
            await self._tell(CHOSEN, {"asked": self.sandboxes, **asdict(self.chosen)})
        except BaseException:
            if own:
                await inner.close()
            raise
        if self.chosen.sandboxes == "fresh":
            return inner
        return Pool(inner, reuse=self.chosen.sandboxes == "reused", close_inner=own)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Builds the image of a spec, if it has one that is not there; takes what time it takes.

        Raises:
            SandboxError: it cannot be built (BuildError), or (IsolationError) not on this host.
        """
        with boundary(SandboxError, "preparing an image"):
            backend = await self._sandboxes(spec)
            if isinstance(backend, PreparesImages):
                await backend.prepare(spec)

    async def open_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox, within the spec's own start-up deadline (an image is built before).

        Raises:
            SandboxError: it did not come up, or (IsolationError) cannot be had on this host.
        """
        await self.prepare(spec)
        try:
            with boundary(SandboxError, "choosing how sandboxes are made"):
                backend = await self._sandboxes(spec)
            async with asyncio.timeout(spec.startup_s):
                with boundary(SandboxError, "opening a sandbox"):
                    return await backend.open(spec)
        except TimeoutError as error:
            raise SandboxTimeout(f"a sandbox did not open within {spec.startup_s:g} s") from error

    def limits_of(self, task: Task) -> Limits:
        """The limits that hold for a task: the caller's, the task's, the environment's."""
        return self.limits or task.limits or self.environment.limits

    def sandbox_of(self, task: Task) -> SandboxSpec | None:
        """The sandbox spec of a task: its own, or the environment's."""
        return task.sandbox or self.environment.sandbox


def check_purpose(purpose: str) -> str:
    """A purpose as it is: one line, not empty.

    Raises:
        ConfigError: it is neither.
    """
    if not purpose or "\n" in purpose:
        raise ConfigError(f"a purpose is one line of text, got {purpose!r}")
    return purpose


def jobs_of(tasks: Sequence[Task], purpose: str, samples: int) -> list[Job]:
    """All samples of all tasks: every task's first sample before any task's second."""
    return [
        Job(task=task, purpose=check_purpose(purpose), sample_index=index)
        for index in range(samples)
        for task in tasks
    ]
