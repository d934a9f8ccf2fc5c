"""The owner's end of the spawn server: one process a backend and event loop.

The server is a child in a session of its own (Ctrl-C does not reach it). It ends, and everything
with it, when this process is gone or hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Sequence
from typing import Any

from quintain.errors import SandboxError
from quintain.sandbox import wire
from quintain.sandbox.channel import Channel
from quintain.sandbox.network import Proxy

START_S = 20.0


class SpawnServer:
    """A running server; made by `start`."""

    name = ""
    """Of its control groups."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, log: int) -> None:
        self._process = process
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: dict[int, asyncio.Future[int]] = {}
        self.plans: dict[object, bytes] = {}
        """Plans by the kind of sandbox."""
        self.proxy = Proxy()
        """Of its networked sandboxes."""
        self._channel = Channel(sock, self._told, self._lost)

    @classmethod
    async def start(cls, argv: Sequence[str], plan: wire.Plan, env: dict[str, str]) -> SpawnServer:
        """Starts the program and lets it build its stage.

        Raises:
            OSError: a step failed; its message names the step.
            SandboxError: the program did not come up.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = os.memfd_create("spawn-server", os.MFD_CLOEXEC)
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220 - once an owner, about a millisecond
                [*argv, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        server = cls(process, ours, log)
        up = False
        try:
            server._channel.send(wire.INIT, 0, bytes(plan.data))
            async with asyncio.timeout(START_S):
                await server._ready
            up = True
        except TimeoutError as error:
            raise SandboxError(f"the spawn server said nothing in {START_S} s") from error
        finally:
            if not up:
                await server.close()
        return server

    async def template(self, body: bytes, timeout_s: float) -> None:
        """Makes it the server of sandboxes that are forked from an interpreter (`zygote.py`).

        Raises:
            OSError: a step or an import failed; its message names it.
            SandboxError: the server is gone.
        """
        self._ready = self._loop.create_future()
        self._channel.send(wire.TEMPLATE, 0, body)
        async with asyncio.timeout(timeout_s):
            await self._ready

    def open(self, number: int, plan: bytes, control: int) -> asyncio.Future[int]:
        """Asks for a sandbox; the future is its wait status, once it is gone."""
        gone: asyncio.Future[int] = self._loop.create_future()
        self._gone[number] = gone
        try:
            self._channel.send(wire.OPEN, number, plan, (control,))
        except OSError as error:
            del self._gone[number]
            raise SandboxError(f"the spawn server is gone: {error}{self.said()}") from error
        return gone

    def reset(self, number: int, control: int) -> asyncio.Future[int]:
        """Asks for a sandbox's end and a new one in its place; the future stays the one of `open`.

        Raises:
            SandboxError: the sandbox or the server is gone.
        """
        gone = self._gone.get(number)
        if gone is None:
            raise SandboxError("the sandbox is gone: it cannot be reset")
        try:
            self._channel.send(wire.RESET, number, b"", (control,))
        except OSError as error:
            raise SandboxError(f"the spawn server is gone: {error}{self.said()}") from error
        return gone

    def alive(self) -> bool:
        """Whether the server still lives."""
        self._channel.poll()
        return self._channel.open

    def end(self, number: int) -> None:
        """Asks for a sandbox's end."""
        if number in self._gone:
            with contextlib.suppress(OSError):
                self._channel.send(wire.CLOSE, number)

    def said(self) -> str:
        """What the program printed, for error messages."""
        with contextlib.suppress(OSError):
            text = os.pread(self._log, 2000, 0).decode("utf-8", "replace").strip()
            return f"; it said: {text}" if text else ""
        return ""

    def _told(self, kind: int, number: int, body: bytes, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if kind == wire.READY and not self._ready.done():
            self._ready.set_result(None)
        elif kind == wire.FAILED:
            (code,) = wire.ERRNO.unpack_from(body)
            self._fail(number, OSError(code, body[4:].decode("utf-8", "replace")))
        elif kind == wire.GONE:
            gone = self._gone.pop(number, None)
            if gone is not None and not gone.done():
                gone.set_result(struct.unpack("<i", body)[0])

    def _fail(self, number: int, error: OSError) -> None:
        waiting: asyncio.Future[Any] | None = self._ready
        if number:
            waiting = self._gone.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _lost(self) -> None:
        error = SandboxError(f"the spawn server is gone{self.said()}")
        everyone: list[asyncio.Future[Any]] = [self._ready, *self._gone.values()]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        self._gone.clear()

    def hang_up(self) -> None:
        """Closes the connection without waiting: the server ends by itself."""
        self.proxy.hang_up()
        self._channel.close()

    async def close(self) -> None:
        """Ends the server and all its sandboxes, and waits for it."""
        self.hang_up()
        await self.proxy.close()
        await asyncio.to_thread(self._process.wait)
        self._lost()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
