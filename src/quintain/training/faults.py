"""Pauses training when the host spoils too many rollouts, in place of going on with what is left.

While it is paused no rollout starts and nothing is learned. Rollouts that the host spoiled wait;
now and then one of them tries again. As soon as one that tries again comes through, training goes
on, and all that waited begin anew: nothing is lost. If none has come through after `patience_s`
seconds of pause, training ends with an error that names the commonest fault; the run can be
resumed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from quintain.errors import TrainingError
from quintain.record import Json
from quintain.rollouts.attempt import retryable
from quintain.trajectory import Trajectory

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Before the first one tries again, doubling up to the longest."""
PAUSED, UNPAUSED = "training.paused", "training.unpaused"
"""Events of the store."""

Tell = Callable[[str, dict[str, Json]], Awaitable[None]]


class Slots(asyncio.Semaphore):
    """Places for rollouts; while the gate is shut, none is given away."""

    def __init__(self, places: int, gate: asyncio.Event) -> None:
        super().__init__(places)
        self._gate = gate

    async def acquire(self) -> bool:  # type: ignore[override]
        """Waits for the gate and a place."""
        while True:
            await self._gate.wait()
            await super().acquire()
            if self._gate.is_set():
                return True
            self.release()


class FaultWatch:
    """Counts host-caused faults among the latest rollouts, and pauses when there are too many.

    Args:
        bound: share above which training pauses.
        window: how many of the latest rollouts are looked at; half of them must have been seen.
        patience_s: seconds of pause after which training ends.
        tell: stores an event.
    """

    def __init__(self, bound: float, window: int, patience_s: float, tell: Tell) -> None:
        self.bound = bound
        self.patience_s = patience_s
        self.recent: deque[str] = deque(maxlen=window)
        """A line for each fault, empty for each rollout without."""
        self.going = asyncio.Event()
        """Not set while paused."""
        self.going.set()
        self._tell = tell
        self._line = asyncio.Lock()
        self._trying: set[tuple[str, int]] = set()
        self._wait_s = FIRST_WAIT_S
        self._since = 0.0
        self._spent_s = 0.0
        """Seconds of earlier pauses since the window was last sound."""

    async def again(self, trajectory: Trajectory) -> bool:
        """Counts a rollout; one that is spoiled while training is paused waits, and begins anew.

        Raises:
            TrainingError: too many were spoiled, and waiting has not helped or cannot help.
        """
        key = (trajectory.task_id, trajectory.sample_index)
        tried = key in self._trying
        self._trying.discard(key)
        fault = _fault(trajectory)
        self.recent.append(fault)
        if not fault:
            await self._sound(tried)
            return False
        if self.going.is_set():
            if not self._too_many:
                return False
            if not retryable(trajectory):
                raise TrainingError(f"{self._message()}. Mend it and resume the run")
            await self._pause()
        async with self._line:
            if not self.going.is_set():
                await self._before_a_try()
            if not self.going.is_set():
                self._trying.add(key)
        return True

    @property
    def _too_many(self) -> bool:
        seen = len(self.recent)
        spoiled = sum(map(bool, self.recent))
        return seen * 2 >= (self.recent.maxlen or 0) and spoiled > self.bound * seen

    async def _sound(self, tried: bool) -> None:
        if not self.going.is_set() and tried:
            self._spent_s += time.monotonic() - self._since
            self.recent.clear()
            self.going.set()
            logger.warning("training goes on: a rollout that was spoiled has come through")
            await self._tell(UNPAUSED, {"paused_s": round(time.monotonic() - self._since, 3)})
        elif self.going.is_set() and len(self.recent) == self.recent.maxlen and not self._too_many:
            self._wait_s, self._spent_s = FIRST_WAIT_S, 0.0

    async def _pause(self) -> None:
        self.going.clear()
        self._since = time.monotonic()
        message = (
            f"training is paused: {self._message()}. One of them tries again every now and then; "
            f"training ends if none comes through within {self.patience_s:g} s"
        )
        logger.warning(message)
        await self._tell(PAUSED, {"message": message})

    async def _before_a_try(self) -> None:
        """Waits until it is time to try again, or training goes on."""
        left_s = self.patience_s - self._spent_s - (time.monotonic() - self._since)
        if left_s <= 0:
            raise TrainingError(
                f"{self._message()}, and none came through in {self.patience_s:g} s of pause. "
                "Mend it and resume the run: nothing finished is lost"
            )
        try:
            async with asyncio.timeout(min(self._wait_s, left_s)):
                await self.going.wait()
        except TimeoutError:
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def _message(self) -> str:
        faults = Counter(text for text in self.recent if text)
        commonest, times = faults.most_common(1)[0]
        return (
            f"{faults.total()} of the last {len(self.recent)} rollouts were spoiled by the host, "
            f"more than the bound of {self.bound:.0%}; the commonest ({times} times): "
            f"{commonest[:500]}"
        )


def _fault(trajectory: Trajectory) -> str:
    """What the host did to it, in words; empty when nothing."""
    if trajectory.outcome is None or not trajectory.outcome.host_fault:
        return ""
    fault = trajectory.error
    return f"{fault.type} in {fault.stage}: {fault.message}" if fault else "unknown fault"
