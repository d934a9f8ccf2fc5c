"""Evaluations of checkpoints: in between, or beside training and bound to a version.

Synchronous training waits for an evaluation, with the very policy that samples. Asynchronous
training goes on: a second policy is made at the checkpoint's version (`Versioned.at`) and kept from
one evaluation to the next; evaluations follow each other in order. Where a policy cannot be made
twice, training waits. An evaluation that was cut off by a kill is taken up when the run is resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from quintain.errors import TrainingError
from quintain.protocols import Published
from quintain.store import Store
from quintain.training.contracts import Checkpoint, OnCheckpoint, TrainedPolicy, Versioned

EVALUATED = "training.evaluated"
"""Event of the store: a checkpoint with whose evaluation one is done."""


class Evaluations:
    """Runs `on_checkpoint` for the checkpoints of one run.

    Args:
        on_checkpoint: see `OnCheckpoint`; None: nothing is evaluated.
        policy: the one that is trained.
        store: the run.
        doing: told when training waits for an evaluation (True) and when no more (False).
    """

    def __init__(
        self,
        on_checkpoint: OnCheckpoint | None,
        policy: TrainedPolicy,
        store: Store,
        doing: Callable[[bool], None] = lambda waits: None,
    ) -> None:
        self.on_checkpoint = on_checkpoint
        self.policy = policy
        self.store = store
        self.beside = False
        """Whether training goes on during evaluations, where the policy allows it."""
        self._doing = doing
        self._other: Any = None
        self._last: asyncio.Task[None] | None = None

    def done(self) -> set[int]:
        """Steps whose checkpoints have been evaluated."""
        return {int(data["step"]) for _, _, data in self.store.event_rows(EVALUATED)}

    async def evaluate(self, step: int, published: Published) -> None:
        """Evaluates a checkpoint; returns at once where training can go on meanwhile.

        Raises:
            BaseException: what an earlier evaluation beside training raised.
        """
        if self.on_checkpoint is None:
            return
        if self.beside and isinstance(self.policy, Versioned):
            self.check()
            self._last = asyncio.create_task(self._beside(step, published, self._last))
            return
        self._doing(True)
        try:
            if self.policy.version == published.version:
                await self._one(Checkpoint(step, published, self.policy))  # type: ignore[arg-type]
            else:
                await self._with_other(step, published)
        finally:
            self._doing(False)

    def check(self) -> None:
        """Raises what an evaluation beside training has raised."""
        if self._last is not None and self._last.done():
            self._last.result()

    async def _beside(
        self, step: int, published: Published, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        await self._with_other(step, published)

    async def _with_other(self, step: int, published: Published) -> None:
        """With a policy of its own at that version."""
        if self._other is None:
            if not isinstance(self.policy, Versioned):
                raise TrainingError(
                    f"the checkpoint of step {step} was not evaluated to the end, and this policy "
                    "cannot be made at its version again (no method `at`)"
                )
            self._other = self.policy.at(published)
        elif self._other.version != published.version:
            await self._other.update(published)
        await self._one(Checkpoint(step, published, self._other))

    async def _one(self, checkpoint: Checkpoint) -> None:
        assert self.on_checkpoint is not None
        await self.on_checkpoint(checkpoint)
        await self.store.event(EVALUATED, {"step": checkpoint.step, "version": checkpoint.version})

    async def drain(self) -> None:
        """Waits until all is evaluated."""
        if self._last is not None:
            self._doing(True)
            try:
                await self._last
            finally:
                self._doing(False)

    async def close(self) -> None:
        """Ends what still goes on, and the second policy; may be called twice."""
        last, self._last = self._last, None
        if last is not None and not last.done():
            last.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await last
        other, self._other = self._other, None
        if other is not None and hasattr(other, "close"):
            await other.close()
