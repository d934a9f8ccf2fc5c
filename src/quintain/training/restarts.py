"""A learner that outlives its process: one that dies is started again and brought to where it was.

What a learner is, its last checkpoint and the batches since then decide. Both are known here: the
checkpoint is on disk, the batches are kept until the next one is written. A new process restores
the checkpoint, takes the batches in their order and does the call during which the other one died.
On a CPU that gives the very same weights, which the hash of the last published ones proves.

A call during which three processes have died is not tried again: whatever kills them (a batch too
large for the memory, say) would do it once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from quintain.batch import Batch
from quintain.errors import TrainingError
from quintain.protocols import Metrics, Published
from quintain.record import Json
from quintain.training.learner_process import LearnerDied, LearnerProcess

logger = logging.getLogger(__name__)
RESTARTED, CAUGHT_UP = "training.learner_restarted", "training.learner_caught_up"
"""Events of the store."""
DEATHS = 3
"""Processes that may die during one call, the last of which ends the run."""

Tell = Callable[[str, dict[str, Json]], Awaitable[None]]


class LastingLearner:
    """An `AsyncLearner` in a process that is started again when it dies.

    Args:
        factory: makes the learner; see `LearnerProcess.start`.
        tell: stores an event.
    """

    def __init__(self, factory: Callable[[], Any], tell: Tell) -> None:
        self._factory = factory
        self._tell = tell
        self._process: LearnerProcess | None = None
        self._since: list[tuple[str, tuple[Any, ...]]] = []
        """Calls that changed the learner since its last checkpoint."""
        self._checkpoint: Path | None = None
        self._published: Published | None = None

    @classmethod
    async def start(cls, factory: Callable[[], Any], tell: Tell) -> LastingLearner:
        """Starts the process and makes the learner in it.

        Raises:
            QuintainError: what the factory raised, or how the process ended.
        """
        learner = cls(factory, tell)
        learner._process = await LearnerProcess.start(factory)
        return learner

    @property
    def pid(self) -> int:
        """Of the process that runs now; 0: none does."""
        return self._process.pid if self._process is not None else 0

    async def update(self, batch: Batch) -> Metrics:
        """One optimiser step on the batch."""
        metrics: Metrics = await self._do("update", batch)
        self._since.append(("update", (batch,)))
        return metrics

    async def publish(self) -> Published:
        """Writes the current weights under the next version."""
        self._published = await self._do("publish")
        self._since.append(("publish", ()))
        return self._published

    async def current(self) -> Published:
        """Writes the current weights under the version that they have."""
        published: Published = await self._do("current")
        return published

    async def save(self, folder: Path) -> Published:
        """Writes a checkpoint."""
        published: Published = await self._do("save", folder)
        self._at(folder)
        return published

    async def restore(self, folder: Path) -> Published:
        """Goes on from a checkpoint."""
        published: Published = await self._do("restore", folder)
        self._at(folder)
        return published

    def _at(self, folder: Path) -> None:
        self._checkpoint, self._published = folder, None
        self._since.clear()

    async def _do(self, method: str, *arguments: Any) -> Any:
        for death in range(1, DEATHS + 1):
            try:
                if self._process is None:
                    await self._begin_again()
                assert self._process is not None
                return await getattr(self._process, method)(*arguments)
            except LearnerDied as error:
                await self.close()
                if death == DEATHS:
                    raise
                logger.warning("%s; it is started again", error)
                await self._tell(RESTARTED, {"during": method, "why": str(error)})
        raise AssertionError("the last death is raised")

    async def _begin_again(self) -> None:
        """A new process, brought to where the old one was."""
        began = time.monotonic()
        process = await LearnerProcess.start(self._factory)
        self._process = process
        if self._checkpoint is not None:
            await process.restore(self._checkpoint)
        published: Published | None = None
        for method, arguments in self._since:
            result = await getattr(process, method)(*arguments)
            published = result if method == "publish" else published
        before = self._published
        if before is not None and (published is None or published.version != before.version):
            raise TrainingError(
                f"the learner that was started again is at version "
                f"{published.version if published else None}, not {before.version}"
            )
        same = before is None or (published is not None and published.hash == before.hash)
        await self._tell(
            CAUGHT_UP,
            {
                "calls": len(self._since),
                "same_weights": same,
                "seconds": round(time.monotonic() - began, 3),
            },
        )

    async def close(self) -> None:
        """Ends the process; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()
