"""One sandbox's way out: accepts its connections, admits its requests, keeps count of them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from quintain.sandbox.network.dial import READ_BYTES, Dialer, Line, Refusal
from quintain.sandbox.network.exchange import Exchange
from quintain.sandbox.network.limits import Meter
from quintain.sandbox.network.names import Rules
from quintain.sandbox.network.record import NetworkLog, Request
from quintain.task import NetworkPolicy
from quintain.trajectory import Event

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 16
PAUSE_S = 0.1
"""How long nothing is accepted when the owner has no descriptors left."""


class Gate:
    """Lets one sandbox out, as far as its policy goes.

    Args:
        policy: what it may reach.
        rules: the same, ready to decide.
        dialer: connects to hosts.
        on_event: called with each request as it ends.
    """

    def __init__(
        self,
        policy: NetworkPolicy,
        rules: Rules,
        dialer: Dialer,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.policy = policy
        self.rules = rules
        self.meter = Meter(policy)
        self.log = NetworkLog(on_event)
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._listening = False
        self._clients: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_closed: Callable[[Gate], None] | None = None
        """Called when it is closed."""

    # --- admission ------------------------------------------------------------------------------

    async def admit(self, request: Request, *, tunnel: bool) -> Line:
        """A connection to the host that a request names, if it may have one.

        Raises:
            Refusal: it may not, or the host cannot be reached.
        """
        why, private = self.rules.decide(request.host, request.port)
        if why:
            raise Refusal(403, why)
        if self.meter.used_up:
            raise Refusal(403, f"the {self.policy.max_bytes} bytes allowed are used up")
        return await self._dialer.connect(
            request.host, request.port, private=private, tunnel=tunnel
        )

    # --- connections ----------------------------------------------------------------------------

    def listen(self, listener: socket.socket) -> None:
        """Accepts from a listening socket, which it owns from now on."""
        listener.setblocking(False)
        self._listener = listener
        self._resume()

    def _resume(self) -> None:
        if self._listener is not None and not self._listening:
            self._loop.add_reader(self._listener, self._accept)
            self._listening = True

    def _pause(self) -> None:
        if self._listener is not None and self._listening:
            self._loop.remove_reader(self._listener)
            self._listening = False

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTED_AT_ONCE):
            if len(self._clients) >= self.policy.max_connections:
                self._pause()
                return
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                log.warning("no connection of a sandbox can be accepted: %s", error)
                self._pause()
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._loop.call_later(PAUSE_S, self._resume)
                else:
                    self._listener.close()
                    self._listener = None
                return
            self.connected(client)

    def connected(self, client: socket.socket) -> None:
        """Serves a connected socket, which it owns from now on."""
        task = self._loop.create_task(self._serve(client))
        self._clients.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection of a sandbox failed", exc_info=error)
        if not self._closed:
            self._resume()

    async def _serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=READ_BYTES)
        try:
            await Exchange(self, reader, writer).run()
        finally:
            writer.transport.abort()

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._clients)

    def hang_up(self) -> None:
        """Stops listening and ends every connection, without waiting."""
        if not self._closed and self.on_closed is not None:
            self.on_closed(self)
        self._closed = True
        self._pause()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if not self._loop.is_closed():
            for task in self._clients:
                task.cancel()

    async def close(self) -> None:
        """Stops listening and ends every connection; may be called twice."""
        self.hang_up()
        if self._loop is asyncio.get_running_loop():
            await asyncio.gather(*self._clients, return_exceptions=True)
