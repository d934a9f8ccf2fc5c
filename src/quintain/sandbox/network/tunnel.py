"""A tunnel: TLS only, to the host whose name its hello carries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quintain.sandbox.network.dial import READ_BYTES, Line, Refusal
from quintain.sandbox.network.hello import (
    DENIED,
    HANDSHAKE,
    BadHello,
    Hello,
    asks_again,
    read_hello,
)
from quintain.sandbox.network.names import BadName, canonical, is_address
from quintain.sandbox.network.record import Request

if TYPE_CHECKING:
    from quintain.sandbox.network.gate import Gate

HELLO_S = 15.0
IDLE_S = 300.0
"""Without a byte in either direction."""
PART_S = 5.0
"""For what was written to be sent."""


class Tunnel:
    """Carries one TLS connection between a sandbox and a host."""

    def __init__(
        self,
        gate: Gate,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: Line,
    ) -> None:
        self.gate = gate
        self.request = request
        self.reader = reader
        self.writer = writer
        self.line = line
        self._asked_again: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the host wants another hello; set by its first record."""
        self._held = b""

    async def run(self, early: bytes) -> None:
        """Carries bytes until both sides are done; `early` came with the request."""
        self.request.decision = "allowed"
        try:
            self._held = early
            await self._hello()
            await self._carry()
        except Refusal as refusal:
            self.request.decision, self.request.reason = refusal.decision, refusal.reason
            self.writer.write(DENIED)
        except TimeoutError:
            self.request.reason = "nothing was said for too long"
        except OSError:
            # Many clients end a finished connection by a reset.
            self.request.reason = "" if self.request.down else "hung up"

    async def _hello(self) -> None:
        """Reads a client hello, checks its name, passes it on; what follows it is held."""
        async with asyncio.timeout(HELLO_S):
            while True:
                try:
                    found = read_hello(self._held)
                except BadHello as error:
                    raise Refusal(403, f"not TLS to that host: {error}") from error
                if found is not None:
                    break
                if not await self._read():
                    what = "half a TLS hello came" if self._held else "no TLS hello came"
                    raise Refusal(403, what)
        hello, length = found
        self._check(hello)
        await self._pass_held(length)

    async def _read(self) -> bool:
        """Takes more from the sandbox; whether it has more."""
        data = await self.reader.read(READ_BYTES)
        self._held += data
        return bool(data)

    async def _pass_held(self, length: int) -> None:
        data, self._held = self._held[:length], self._held[length:]
        await self._pass(data, up=True)

    def _check(self, hello: Hello) -> None:
        host = self.request.host
        if hello.encrypted and not self.gate.policy.encrypted_hello:
            raise Refusal(403, "the TLS hello carries an encrypted name (ECH)")
        if hello.name is None:
            if not is_address(host):
                raise Refusal(403, "the TLS hello names no host")
            return
        try:
            name = canonical(hello.name)
        except BadName as error:
            raise Refusal(403, f"the TLS hello's name: {error}") from error
        if name != host:
            raise Refusal(403, f"the TLS hello names another host: {name}")

    async def _carry(self) -> None:
        async with asyncio.timeout(IDLE_S) as idle:
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._upwards(idle))
                    both.create_task(self._downwards(idle))
            except ExceptionGroup as group:
                refusals = [error for error in group.exceptions if isinstance(error, Refusal)]
                if refusals:
                    raise refusals[0] from group
                if all(isinstance(error, OSError) for error in group.exceptions):
                    raise ConnectionError("a side hung up") from group
                raise

    async def _upwards(self, idle: asyncio.Timeout) -> None:
        if await self._hold():
            await self._second_hello(idle)
        await self._pass_held(len(self._held))
        while data := await self.reader.read(READ_BYTES):
            await self._pass(data, up=True)
            _stir(idle)
        self.line.writer.write_eof()

    async def _hold(self) -> bool:
        """Waits for the host's answer to the hello; whether it asks for another one.

        A client says nothing in between but early data, which waits here; or it hangs up.
        """
        while not self._asked_again.done() and len(self._held) < READ_BYTES:
            reading = asyncio.ensure_future(self._read())
            try:
                await asyncio.wait(
                    [reading, self._asked_again], return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if not reading.cancelled() and not reading.result():
                if not self._held:
                    self.line.writer.write_eof()
                break
        return await self._asked_again

    async def _second_hello(self, idle: asyncio.Timeout) -> None:
        """Passes records on up to the second hello, and checks that as the first."""
        while True:
            if self._held[:1] == bytes([HANDSHAKE]):
                await self._hello()
                return
            length = 5 + int.from_bytes(self._held[3:5], "big")
            if len(self._held) >= max(5, length):
                await self._pass_held(length)
            elif not await self._read():
                return
            _stir(idle)

    async def _downwards(self, idle: asyncio.Timeout) -> None:
        first = b""
        try:
            while data := await self.line.reader.read(READ_BYTES):
                if not self._asked_again.done():
                    first += data
                    again = asks_again(first)
                    if again is not None:
                        self._asked_again.set_result(again)
                await self._pass(data, up=False)
                _stir(idle)
        finally:
            if not self._asked_again.done():
                self._asked_again.set_result(False)
        self.writer.write_eof()

    async def _pass(self, data: bytes, *, up: bool) -> None:
        writer = self.line.writer if up else self.writer
        granted = self.gate.meter.grant(len(data), up=up)
        if up:
            self.request.up += granted
        else:
            self.request.down += granted
        if granted:
            writer.write(data[:granted])
        if granted < len(data):
            raise Refusal(403, "the bytes allowed are used up")
        await self.gate.meter.pace(granted)
        await writer.drain()


def _stir(idle: asyncio.Timeout) -> None:
    """Something moved: the wait begins anew."""
    idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)


async def part(writer: asyncio.StreamWriter) -> None:
    """Hangs up as soon as what was written is sent, or could not be for too long."""
    try:
        async with asyncio.timeout(PART_S):
            writer.close()
            await writer.wait_closed()
    except OSError:
        pass  # its abort is all that is left
    finally:
        writer.transport.abort()
