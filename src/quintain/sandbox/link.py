"""The owner's end of one supervisor: it comes up, answers questions, and is gone.

A sandbox has one at a time; `restore` gives it another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from quintain.errors import SandboxError, SandboxTimeout
from quintain.sandbox import wire
from quintain.sandbox.channel import Channel
from quintain.sandbox.server import SpawnServer

CLOSE_S = 20.0


class Link:
    """A supervisor, from its owner's side.

    Args:
        server: which forks it.
        number: of the sandbox, for the server.
    """

    def __init__(self, server: SpawnServer, number: int) -> None:
        self.server = server
        self.number = number
        self._loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = self._loop.create_future()
        self._layer: asyncio.Future[int] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._closed = False
        self._gone: asyncio.Future[int] | None = None
        self.listener: socket.socket | None = None
        """Of a sandbox with a network: its way out, until someone serves it."""
        self.broken = ""
        """Why it cannot be used any more."""
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours, self._told, self._on_hang_up)

    async def start(
        self, plan: bytes | None, startup_s: float, fill: Callable[[int], None] | None = None
    ) -> None:
        """Brings it up.

        Args:
            plan: what it carries out; None: that of the supervisor with the same number, which
                is reset.
            startup_s: seconds that it may take.
            fill: called in a thread with a descriptor of the writable layer, where the plan asks.
        """
        with self._theirs:
            control = self._theirs.fileno()
            if plan is None:
                self._gone = self.server.reset(self.number, control)
            else:
                self._gone = self.server.open(self.number, plan, control)
        self._gone.add_done_callback(self._on_gone)
        async with asyncio.timeout(startup_s):
            if fill is not None:
                either: list[asyncio.Future[Any]] = [self._up, self._layer]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if self._layer.done():
                    await asyncio.to_thread(_filling, fill, self._layer.result())
                    self._channel.send(wire.FILLED, 0)
            await self._up

    def _on_gone(self, gone: asyncio.Future[int]) -> None:
        if gone.cancelled():
            return
        error = gone.exception()
        if error is not None and not self._up.done():
            self._up.set_exception(error)
            return
        self.lose(f"its supervisor is gone ({error or gone.result()})")

    def _on_hang_up(self) -> None:
        # Before it is up, the server knows why and will say so.
        if self._up.done():
            self.lose("its supervisor hung up")

    def _told(self, kind: int, number: int, body: bytes, fds: list[int]) -> None:
        if kind == wire.UP and not self._up.done():
            if fds:
                self.listener = socket.socket(fileno=fds[0])
            self._up.set_result(None)
        elif kind == wire.FILL and not self._layer.done():
            self._layer.set_result(fds[0])
        elif kind == wire.BROKEN and not self._up.done():
            (code,) = wire.ERRNO.unpack_from(body)
            self._up.set_exception(OSError(code, body[4:].decode("utf-8", "replace")))
        elif kind in (wire.OPENED, wire.REFUSED):
            self._answered(kind, number, body, fds)

    def _answered(self, kind: int, number: int, body: bytes, fds: list[int]) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is None or waiting.done():
            for fd in fds:
                os.close(fd)
        elif kind == wire.OPENED:
            waiting.set_result(fds[0])
        else:
            (code,) = wire.ERRNO.unpack_from(body)
            waiting.set_exception(OSError(code, os.strerror(code)))

    def lose(self, why: str) -> None:
        """Nobody waits any more, and every further question is an error."""
        self.broken = self.broken or why
        error = SandboxError(f"the sandbox is broken: {why}")
        everyone: list[asyncio.Future[Any]] = [self._up, *self._answers.values()]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        self._answers.clear()

    def ask(
        self, kind: int, body: bytes = b"", fds: tuple[int, ...] = ()
    ) -> tuple[int, asyncio.Future[int]]:
        """Sends a question; its number, and the future of its answer (a descriptor).

        Raises:
            SandboxError: the supervisor is gone.
        """
        if self._closed or self.broken:
            why = self.broken or "it was closed"
            raise SandboxError(f"the sandbox cannot be used any more: {why}")
        self._next += 1
        answer: asyncio.Future[int] = self._loop.create_future()
        self._answers[self._next] = answer
        try:
            self._channel.send(kind, self._next, body, fds)
        except OSError as error:
            self._answers.pop(self._next, None)
            self.lose(f"its supervisor does not answer ({error})")
            raise SandboxError(f"the sandbox is broken: {self.broken}") from error
        return self._next, answer

    async def answer(self, kind: int, body: bytes, within_s: float, what: str) -> int:
        """Asks, and waits for the descriptor.

        Raises:
            OSError: it was refused.
            SandboxError: the supervisor is gone, or says nothing in time.
        """
        number, answer = self.ask(kind, body)
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError as error:
            if isinstance(error, SandboxError):
                raise
            raise SandboxTimeout(f"the sandbox did not {what} within {within_s:g} s") from error
        finally:
            self._answers.pop(number, None)

    def forget(self, number: int) -> None:
        """No answer to that question is expected any more."""
        self._answers.pop(number, None)

    def tell(self, kind: int, number: int, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Sends a word that has no answer."""
        with contextlib.suppress(OSError):
            self._channel.send(kind, number, body, fds)

    def check(self) -> None:
        """Raises SandboxError if the supervisor is gone."""
        self._channel.poll()
        if self.broken:
            raise SandboxError(f"the sandbox is broken: {self.broken}")

    def poll(self) -> None:
        """Takes what has arrived."""
        self._channel.poll()

    async def settled(self, answer: asyncio.Future[int], within_s: float) -> None:
        """Waits a moment for an answer or the supervisor's end, and takes what has arrived."""
        self.poll()
        if not answer.done() and not self.broken and self._gone is not None:
            either: list[asyncio.Future[int]] = [answer, self._gone]
            await asyncio.wait(either, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            self.poll()

    def abandon(self, why: str) -> None:
        """Leaves it to another link with the same number; `hang_up` once that one is up."""
        self._closed = True
        self.lose(why)
        if self._gone is not None:
            self._gone.remove_done_callback(self._on_gone)
            self._gone = None

    def hang_up(self) -> None:
        """Closes the connection."""
        self._channel.close()

    async def close(self) -> None:
        """Ends it with everything inside, and waits; may be called twice."""
        if not self._closed:
            self._closed = True
            self.lose("it was closed")
            self.server.end(self.number)
            self.hang_up()
            if self.listener is not None:
                self.listener.close()
        if self._gone is None:
            return
        done, _ = await asyncio.wait([self._gone], timeout=CLOSE_S)
        if not done:
            raise SandboxTimeout(f"a sandbox was not gone {CLOSE_S} s after it was closed")


def _filling(fill: Callable[[int], None], layer: int) -> None:
    """Fills, and closes the descriptor, which the link may not do: it can be closed meanwhile."""
    try:
        fill(layer)
    finally:
        os.close(layer)
