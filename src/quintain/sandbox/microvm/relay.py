"""Carries the connections of a guest's port to the owner's proxy.

The agent accepts on a port of the sandbox and tells of each connection; the owner gives the proxy
one end of a socket pair and carries bytes between the other end and the serial port, with windows,
so that a slow reader on either side holds up its own connection only.
"""

from __future__ import annotations

import asyncio
import socket

from quintain.errors import SandboxError
from quintain.sandbox.microvm import frames
from quintain.sandbox.microvm.guest import Guest
from quintain.sandbox.network import Gate

MOST_WAITING = 4 * frames.CHUNK
"""What the agent may send on one connection before it is told to go on."""


class _Connection:
    """One connection of the guest."""

    def __init__(self, guest: Guest, number: int, sock: socket.socket) -> None:
        self._guest, self.number, self._sock = guest, number, sock
        self._room = frames.INPUT_WINDOW
        self._roomy = asyncio.Event()
        self._outward: asyncio.Queue[bytes] = asyncio.Queue()

    def told(self, kind: int, body: bytes) -> None:
        """Takes a frame about it."""
        if kind == frames.OUT:
            self._outward.put_nowait(body)
        elif kind == frames.CREDIT:
            self._room += frames.NUMBER.unpack(body)[0]
            self._roomy.set()

    async def carry(self) -> None:
        """Carries both ways, until both sides have ended or either is gone."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_out())
                both.create_task(self._carry_in())
        except* (OSError, SandboxError):
            pass  # Either side may go at any time: the other is hung up on.
        finally:
            self._sock.close()

    async def _carry_out(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await self._outward.get():
            await loop.sock_sendall(self._sock, data)
            more = frames.NUMBER.pack(len(data))
            await self._guest.send(frames.WINDOW, self.number, more)
        self._sock.shutdown(socket.SHUT_WR)

    async def _carry_in(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._sock, frames.CHUNK):
            while self._room < len(data):
                self._roomy.clear()
                await self._roomy.wait()
            self._room -= len(data)
            await self._guest.send(frames.INPUT, self.number, data)
        await self._guest.send(frames.INPUT, self.number)


class Relay:
    """Serves one port of a guest; made by `start`."""

    def __init__(self, guest: Guest, gate: Gate) -> None:
        self._guest, self.gate = guest, gate
        self._tasks: set[asyncio.Task[None]] = set()
        guest.on_accept = self._accepted

    @classmethod
    async def start(cls, guest: Guest, gate: Gate, port: int) -> Relay:
        """Lets programs in the guest reach the gate at a port of 127.0.0.1.

        Raises:
            OSError: the guest cannot listen there.
        """
        relay = cls(guest, gate)
        await guest.call(frames.LISTEN, [port])
        return relay

    def _accepted(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = _Connection(self._guest, number, ours)
        self._guest.listen(number, connection.told)
        if len(self._tasks) < self.gate.policy.max_connections:
            self.gate.connected(theirs)
        else:
            theirs.close()
        task = asyncio.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: _Connection) -> None:
        try:
            await connection.carry()
        finally:
            self._guest.forget(connection.number)
        if not self._guest.broken:
            await self._guest.send(frames.KILL, connection.number)

    async def close(self) -> None:
        """Ends every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.gate.close()
