"""Batches that form by turn and order, never by arrival: generation that repeats bit for bit.

Matrix kernels round differently for different batches, so which requests share a batch decides
the last bits of a log-probability, and now and then a token. With a lockstep the calls of a fixed
list of sessions are held until every session that still plays has made one; they then go to the
engine together, in the order of the list. What arrives first no longer matters.

Sessions that are through must be reported with `done`, or the others wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quintain.errors import ConfigError
from quintain.record import Json

Submit = Callable[[list[Json]], "list[asyncio.Future[Json]]"]


class Lockstep:
    """The calls of some sessions, let go in waves.

    Args:
        sessions: all that will play, in the order that batches keep.
        submit: hands a wave's requests to the engine, in order.
    """

    def __init__(self, sessions: Sequence[str], submit: Submit) -> None:
        self._order = {session: place for place, session in enumerate(sessions)}
        if len(self._order) != len(sessions):
            raise ConfigError("a lockstep's sessions have different names")
        self._playing = set(sessions)
        self._submit = submit
        self._pending: dict[str, tuple[Json, asyncio.Future[Json]]] = {}
        self.waves = 0
        """How many have been let go."""

    def __contains__(self, session: str) -> bool:
        return session in self._playing

    async def call(self, session: str, request: Json) -> Json:
        """Waits for the others, then for the engine's answer."""
        if session in self._pending:
            raise ConfigError(f"session {session!r} makes two calls at once")
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._pending[session] = (request, future)
        self._go()
        try:
            return await future
        finally:
            # Cancelled before its wave went: the others need not wait for this call's answer.
            if self._pending.get(session, (None, None))[1] is future:
                del self._pending[session]

    def done(self, session: str) -> None:
        """The session makes no more calls."""
        self._playing.discard(session)
        self._go()

    def _go(self) -> None:
        """Lets a wave go once every playing session is in it."""
        if not self._pending or self._playing - self._pending.keys():
            return
        wave = sorted(self._pending.items(), key=lambda item: self._order[item[0]])
        self._pending = {}
        self.waves += 1
        try:
            answers = self._submit([request for _, (request, _) in wave])
        except Exception as fault:
            for _, (_, future) in wave:
                if not future.done():
                    future.set_exception(fault)
            return
        for (_, (_, future)), answer in zip(wave, answers, strict=True):
            answer.add_done_callback(_copier(future))


def _copier(target: asyncio.Future[Json]) -> Callable[[asyncio.Future[Json]], None]:
    def copy(source: asyncio.Future[Json]) -> None:
        if target.done():
            return
        if source.cancelled():
            target.cancel()
        elif (fault := source.exception()) is not None:
            target.set_exception(fault)
        else:
            target.set_result(source.result())

    return copy
