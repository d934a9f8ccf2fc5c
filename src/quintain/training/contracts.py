"""What the training loops ask of a learner, of a policy and of whoever evaluates checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from quintain.batch import Batch
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Metrics, Policy, Published


class AsyncLearner(Protocol):
    """A learner behind an async client; see `learner_process`."""

    async def update(self, batch: Batch) -> Metrics:
        """One optimiser step."""
        ...

    async def publish(self) -> Published:
        """Writes the weights under the next version."""
        ...

    async def current(self) -> Published:
        """Writes the weights under their version."""
        ...

    async def save(self, folder: Path) -> Published:
        """Writes a checkpoint."""
        ...

    async def restore(self, folder: Path) -> Published:
        """Goes on from a checkpoint."""
        ...


@runtime_checkable
class TrainedPolicy(Protocol):
    """A policy that takes new weights."""

    version: int
    spec: ModelSpec

    async def update(self, published: Published) -> None:
        """Samples with these weights from now on."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """A policy that others can be made from which stay at a version while it goes on changing."""

    def at(self, published: Published | None) -> Policy:
        """Another policy over the same model, at those weights."""
        ...


class Step(Protocol):
    """Sessions whose calls go to the sampler together."""

    def done(self, session: str) -> None:
        """The session makes no more calls."""
        ...


@runtime_checkable
class InStep(Protocol):
    """A policy that can form its batches by turn and order in place of arrival."""

    def lockstep(self, sessions: Sequence[str]) -> AbstractAsyncContextManager[Step]:
        """While open, a call of these sessions waits until each that still plays has made one."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights on disk that belong to a step."""

    step: int
    published: Published
    policy: Policy
    """At these weights, and stays there while it is evaluated."""

    @property
    def version(self) -> int:
        """The policy version."""
        return self.published.version


OnMember = Callable[[int, object], Awaitable[None]]
OnCheckpoint = Callable[[Checkpoint], Awaitable[None]]
"""Called for step 0, every evaluation step and the end, once a checkpoint, in order.

While training is synchronous it is awaited before the policy gets newer weights; while it is
asynchronous training goes on meanwhile. A run that is resumed calls it again for a checkpoint with
which a former process was not done: what is stored it must not repeat.
"""
