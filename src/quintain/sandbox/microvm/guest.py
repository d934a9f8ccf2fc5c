"""The owner's end of a guest agent: requests, commands and files over one socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence

from quintain.errors import SandboxError
from quintain.sandbox.command import Kept
from quintain.sandbox.microvm import frames

Sink = Callable[[int, bytes], None]
WALK_S = 600.0
"""How long everything that was written may take on its way."""
ANSWER_S = 60.0
"""How long the agent may take for what is not a command."""


class Running:
    """A command in the guest."""

    def __init__(self, guest: Guest, number: int, most: int) -> None:
        self._guest = guest
        self.number = number
        self.out, self.err = Kept(most), Kept(most)
        self.answered: Callable[[bytes], None] = lambda _: None
        """Of a session's process: takes what it answers."""
        self.ended: asyncio.Future[frames.Ending] = asyncio.get_running_loop().create_future()
        self._room = frames.INPUT_WINDOW
        self._roomy = asyncio.Event()

    def told(self, kind: int, body: bytes) -> None:
        """Takes a frame about it."""
        if kind == frames.OUT:
            self.out.add(body)
        elif kind == frames.ERR:
            self.err.add(body)
        elif kind in (frames.OUT_TAIL, frames.ERR_TAIL):
            (untold,) = frames.TOTAL.unpack_from(body)
            kept, tail = (
                self.out if kind == frames.OUT_TAIL else self.err,
                body[frames.TOTAL.size :],
            )
            kept.skip(untold - len(tail))
            kept.add(tail)
        elif kind == frames.ANSWER:
            self.answered(body)
        elif kind == frames.CREDIT:
            self._room += frames.NUMBER.unpack(body)[0]
            self._roomy.set()
        elif kind == frames.EXIT and not self.ended.done():
            self.ended.set_result(frames.ending(body))

    async def feed(self, data: bytes, *, end: bool = True) -> None:
        """Sends input, as fast as it is taken."""
        view = memoryview(data)
        while view:
            while self._room <= 0:
                self._roomy.clear()
                await self._roomy.wait()
            piece = view[: min(frames.CHUNK, self._room)]
            self._room -= len(piece)
            view = view[len(piece) :]
            await self._guest.send(frames.INPUT, self.number, bytes(piece))
        if end:
            await self._guest.send(frames.INPUT, self.number)

    async def kill(self, pid: int = 0, signal: int = 0) -> None:
        """Ends its whole tree; or signals a session's process and ends what is young in it."""
        body = frames.words([pid, signal]) if pid else b""
        await self._guest.send(frames.KILL, self.number, body)


class Guest:
    """A live connection to an agent; made by `connect`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: int
    ) -> None:
        self._reader, self._writer = reader, writer
        self._sinks: dict[int, Sink] = {}
        self._waiting: set[asyncio.Future[frames.Ending] | asyncio.Future[int]] = set()
        self.next = first
        """The id of the next request."""
        self._turn = asyncio.Lock()
        self._greeted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.add(self._greeted)
        self.broken = ""
        self.on_accept: Callable[[int], None] | None = None
        """Told the id of a connection to a listening port of the guest."""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, sock: socket.socket, first: int = 1) -> Guest:
        """Over the owner's end of the serial port.

        Args:
            sock: that end.
            first: the id of the first request; above all ids that a restored guest may remember.
        """
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=frames.MAX_FRAME)
        return cls(reader, writer, first)

    async def _listen(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(frames.HEAD.size)
                size, number, kind = frames.HEAD.unpack(head)
                if size > frames.MAX_FRAME:
                    self.lose("its agent sent nonsense")
                    return
                self._told(kind, number, await self._reader.readexactly(size))
        except (OSError, EOFError) as error:
            self.lose(f"its agent hung up ({error})")

    def _told(self, kind: int, number: int, body: bytes) -> None:
        if kind == frames.HELLO:
            if not self._greeted.done():
                self._greeted.set_result(0)
        elif kind == frames.ACCEPT and self.on_accept is not None:
            self.on_accept(number)
        elif number in self._sinks:
            self._sinks[number](kind, body)

    def lose(self, why: str) -> None:
        """Whoever waits is told that the sandbox is broken."""
        self.broken = self.broken or why
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(SandboxError(f"the sandbox is broken: {self.broken}"))
                waiting.exception()
        self._waiting.clear()

    def check(self) -> None:
        """Raises SandboxError if nobody is there."""
        if self.broken:
            raise SandboxError(f"the sandbox is broken: {self.broken}")

    async def close(self) -> None:
        """Hangs up; may be called twice."""
        self.lose("it was closed")
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def send(self, kind: int, number: int, body: bytes = b"") -> None:
        """Sends one frame.

        Raises:
            SandboxError: nobody is there.
        """
        if self.broken:
            raise SandboxError(f"the sandbox cannot be used any more: {self.broken}")
        try:
            async with self._turn:
                self._writer.write(frames.frame(kind, number, body))
                await self._writer.drain()
        except OSError as error:
            self.lose(f"its agent hung up ({error})")
            raise SandboxError(f"the sandbox is broken: {self.broken}") from error

    async def greeted(self) -> None:
        """Waits until a booting guest's agent is there."""
        await self._greeted

    @contextlib.asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """Nothing runs in the sandbox and nothing is on its way, until this ends.

        `written` may be asked meanwhile, and nothing else.
        """
        async with self._turn:
            await self._alone(frames.FREEZE)
            try:
                yield
            finally:
                if not self.broken:
                    await self._alone(frames.THAW)

    async def written(self, sink: Callable[[bytes], object]) -> None:
        """Gives everything in the writable layer to a sink, piece by piece; in a silence only."""
        await self._alone(frames.WALK, ["", 1 << 31, 0, 0, 1], sink, WALK_S)

    async def _alone(
        self,
        kind: int,
        values: Sequence[str | int] = (),
        sink: Callable[[bytes], object] = lambda _: None,
        within_s: float = ANSWER_S,
    ) -> None:
        """Makes a request while nobody else may send."""
        number = self._number()
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)

        def told(kind: int, body: bytes) -> None:
            if kind == frames.DATA:
                sink(body)
            elif not answer.done():
                answer.set_result(0)

        self.listen(number, told)
        try:
            async with asyncio.timeout(within_s):
                self._writer.write(frames.frame(kind, number, frames.words(values)))
                await self._writer.drain()
                await answer
        finally:
            self.forget(number)
            self._waiting.discard(answer)

    def listen(self, number: int, sink: Sink) -> None:
        """Frames of that id go to the sink, until it is forgotten."""
        self._sinks[number] = sink

    def _number(self) -> int:
        self.next = self.next % 0x7FFFFFFE + 1
        return self.next

    async def call(
        self, kind: int, values: Sequence[str | bytes | int], content: bytes | None = None
    ) -> bytes:
        """Makes a request and returns the data that came with the answer.

        Args:
            kind: of the request.
            values: its words.
            content: sent after it as a stream.

        Raises:
            OSError: the guest's answer.
            TimeoutError: there was none.
            SandboxError: nobody is there.
        """
        number, data = self._number(), bytearray()
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def told(kind: int, body: bytes) -> None:
            if kind == frames.DATA:
                data.extend(body)
            elif kind == frames.DONE and not answer.done():
                answer.set_result(frames.ERRNO.unpack(body)[0])

        self._sinks[number] = told
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.send(kind, number, frames.words(values))
                if content is not None:
                    for at in range(0, len(content), frames.CHUNK):
                        piece = content[at : at + frames.CHUNK]
                        await self.send(frames.INPUT, number, piece)
                    await self.send(frames.INPUT, number)
                error = await answer
        finally:
            del self._sinks[number]
            self._waiting.discard(answer)
        if error:
            raise OSError(error, os.strerror(error))
        return bytes(data)

    async def start(self) -> None:
        """Wakes a guest that was booted or restored: new entropy, the time, nothing running."""
        await self.call(frames.START, [secrets.token_bytes(64), time.time_ns() // 1000])

    async def execute(
        self,
        argv: Sequence[str],
        *,
        env: Sequence[str],
        cwd: str,
        uid: int,
        gid: int,
        limit_ms: int,
        most: int,
        attached: bool = False,
    ) -> Running:
        """Starts a command; `forget` its number once it has ended.

        Args:
            argv: program and arguments.
            env: "NAME=value" each.
            cwd: where it starts.
            uid: who it is.
            gid: its group.
            limit_ms: after which its tree is killed; 0: never.
            most: bytes of stdout and of stderr that are told, each.
            attached: whether it is a session's process.
        """
        running = Running(self, self._number(), most)
        self._sinks[running.number] = running.told
        self._waiting.add(running.ended)
        running.ended.add_done_callback(self._waiting.discard)
        values: list[str | bytes | int] = [limit_ms, most, len(argv), uid, gid, cwd, *argv, *env]
        try:
            kind = frames.ATTACH if attached else frames.EXEC
            await self.send(kind, running.number, frames.words(values))
        except BaseException:
            self.forget(running.number)
            raise
        return running

    def forget(self, number: int) -> None:
        """Nothing more is expected about it."""
        self._sinks.pop(number, None)
