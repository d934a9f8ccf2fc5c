"""How long probes may take together: attacks side by side, measures one after the other.

A probe of one backend alone takes the time that it needs. Several of one *sitting* share a limit;
a processor that others use too is no place to measure on, so whoever has attacked waits for the
rest. What does not fit is left out, and told.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar

from quintain.protocols import Probe

ATTACKS_SHARE = 0.65
"""Of a sitting's time; the rest is for measures."""
GRACE_S = 3.0
"""For closing what was being measured."""


class Turn:
    """One probe's part of a sitting; without a sitting it has all the time it wants."""

    def __init__(self, sitting: Sitting | None = None) -> None:
        self._sitting = sitting
        self._until = sitting.attacks_until if sitting is not None else float("inf")
        self.guard = asyncio.timeout(None)
        """Ends the whole probe if it does not end by itself."""
        self.attacking = sitting is not None

    @property
    def left_s(self) -> float:
        """Seconds that it has for what it does now."""
        return self._until - time.monotonic()

    def limit(self) -> asyncio.Timeout:
        """The end of what it does now, as a context."""
        return asyncio.timeout(None if self._until == float("inf") else max(0.0, self.left_s))

    def watch(self) -> None:
        """Sets the guard to a little after the end of what it does now."""
        if self._until < float("inf"):
            within_s = max(0.0, self.left_s) + GRACE_S
            self.guard.reschedule(asyncio.get_running_loop().time() + within_s)

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """For measures: nobody attacks any more, and nobody else measures."""
        if self._sitting is None:
            yield
            return
        self.guard.reschedule(None)
        self._sitting.attacked(self)
        async with self._sitting.measuring():
            self._until = self._sitting.measure_until()
            self.watch()
            yield


class Sitting:
    """Several probes.

    Args:
        probes: how many.
        within_s: for all of them together.
        at_once: how many attack side by side.
    """

    def __init__(self, probes: int, within_s: float, at_once: int) -> None:
        self._attacking = self._left = probes
        self.attacks_until = time.monotonic() + ATTACKS_SHARE * within_s
        self._until = time.monotonic() + within_s
        self._places = asyncio.Semaphore(at_once)
        self._calm = asyncio.Event()
        self._turn = asyncio.Lock()

    async def take(self, probe: Callable[[], Awaitable[Probe]]) -> Probe:
        """Runs one probe when there is a place for it.

        Raises:
            TimeoutError: there was no time for it, or for what it has to do first.
        """
        await self._places.acquire()
        turn = Turn(self)
        before = _current.set(turn)
        try:
            async with turn.guard:
                turn.watch()
                return await probe()
        finally:
            _current.reset(before)
            self.attacked(turn)
            self._left -= 1

    def attacked(self, turn: Turn) -> None:
        """A probe needs its place no more."""
        if turn.attacking:
            turn.attacking = False
            self._places.release()
            self._attacking -= 1
            if self._attacking == 0:
                self._calm.set()

    @contextlib.asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """When all have attacked, one after the other."""
        await self._calm.wait()
        async with self._turn:
            yield

    def measure_until(self) -> float:
        """The end of one probe's share of what is left."""
        now = time.monotonic()
        return now + max(0.0, self._until - now) / max(1, self._left)


_current: ContextVar[Turn | None] = ContextVar("turn", default=None)


def turn() -> Turn:
    """The part that the running probe has; its own where it is alone."""
    return _current.get() or Turn()
