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

START_S = 20.0


class SpawnServer:
    """A running server; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, log: int) -> None:
        self._process = process
        self._sock = sock
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: dict[int, asyncio.Future[int]] = {}
        self.alive = True
        self._loop.add_reader(sock, self._readable)

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
        ours.setblocking(False)
        server = cls(process, ours, log)
        try:
            wire.send(ours, wire.INIT, 0, bytes(plan.data))
            async with asyncio.timeout(START_S):
                await server._ready
        except TimeoutError as error:
            raise SandboxError(f"the spawn server said nothing in {START_S} s") from error
        finally:
            if not server._ready.done() or server._ready.cancelled() or server._ready.exception():
                await server.close()
        return server

    def open(self, number: int, plan: bytes, control: int) -> asyncio.Future[int]:
        """Asks for a sandbox; the future is its wait status, once it is gone."""
        gone: asyncio.Future[int] = self._loop.create_future()
        self._gone[number] = gone
        try:
            wire.send(self._sock, wire.OPEN, number, plan, (control,))
        except OSError as error:
            del self._gone[number]
            raise SandboxError(f"the spawn server is gone: {error}{self.said()}") from error
        return gone

    def end(self, number: int) -> None:
        """Asks for a sandbox's end."""
        if number in self._gone:
            with contextlib.suppress(OSError):
                wire.send(self._sock, wire.CLOSE, number)

    def said(self) -> str:
        """What the program printed, for error messages."""
        with contextlib.suppress(OSError):
            text = os.pread(self._log, 2000, 0).decode("utf-8", "replace").strip()
            return f"; it said: {text}" if text else ""
        return ""

    def _readable(self) -> None:
        while True:
            try:
                frame = wire.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                frame = None
            if frame is None:
                self._lost()
                return
            kind, number, body, _ = frame
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
        waiting = self._gone.pop(number, None) if number else self._ready
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _lost(self) -> None:
        self.alive = False
        self._loop.remove_reader(self._sock)
        error = SandboxError(f"the spawn server is gone{self.said()}")
        everyone: list[asyncio.Future[Any]] = [self._ready, *self._gone.values()]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        self._gone.clear()

    def hang_up(self) -> None:
        """Closes the connection without waiting: the server ends by itself."""
        self.alive = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
        self._sock.close()

    async def close(self) -> None:
        """Ends the server and all its sandboxes, and waits for it."""
        self.hang_up()
        await asyncio.to_thread(self._process.wait)
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
