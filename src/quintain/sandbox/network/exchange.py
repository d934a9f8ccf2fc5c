"""One connection of a sandbox: HTTP requests, each decided anew, or a tunnel for TLS.

Nothing of what the sandbox sends is passed on as it came: requests are parsed, checked and written
anew, one to a connection, so that no host can read them differently. A tunnel begins with a TLS
hello that names the very host that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import h11

from quintain.sandbox.network.dial import READ_BYTES, Line, Refusal
from quintain.sandbox.network.names import BadName, bracketed, split_port
from quintain.sandbox.network.record import Request
from quintain.sandbox.network.tunnel import Tunnel, part

if TYPE_CHECKING:
    from quintain.sandbox.network.gate import Gate

MOST_HEADER_BYTES = 32_768
HEAD_S = 15.0
"""From the first byte of a request to the end of its headers."""
IDLE_S = 300.0
"""Without a byte of an answer (a model may think for long), or between two requests."""
PART_S = 2.0
"""For the other side to take the rest and hang up."""
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
}  # fmt: skip


class Exchange:
    """Serves one connection of a sandbox to its end."""

    def __init__(
        self, gate: Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.gate = gate
        self.reader = reader
        self.writer = writer
        self.talk = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)

    async def run(self) -> None:
        """Serves requests until either side is done; what goes wrong ends the connection."""
        try:
            another = await self._one(first=True)
            while another:
                self.talk.start_next_cycle()
                another = await self._one()
            await self._part()
        except OSError:
            pass  # the sandbox hung up, or said nothing for too long

    async def _one(self, *, first: bool = False) -> bool:
        """Serves one request; whether another may follow."""
        # Connections and requests wait for their turn, whatever becomes of them: a flood of what is
        # refused would else keep the owner from its work.
        in_time = await self.gate.meter.turn() if first else True
        if not await self._wait_for_request():
            return False
        request = self.gate.log.begin()
        try:
            if not in_time or not (first or await self.gate.meter.turn()):
                raise Refusal(429, "too many requests")
            async with asyncio.timeout(HEAD_S):
                event = await self._next()
            if not isinstance(event, h11.Request):
                raise Refusal(400, "no request")
            return await self._serve(request, event)
        except Refusal as refusal:
            request.decision, request.reason = refusal.decision, refusal.reason
            await self._refuse(refusal)
        except h11.RemoteProtocolError as error:
            request.decision, request.reason = "refused", f"malformed: {error}"[:200]
            await self._refuse(Refusal(error.error_status_hint, request.reason))
        except OSError as error:
            stalled = isinstance(error, TimeoutError)
            if request.decision == "open":
                request.decision = "refused" if not request.method else "failed"
            request.reason = request.reason or ("too slow" if stalled else "hung up")
            raise
        finally:
            if request.decision == "open":
                request.decision, request.reason = "failed", "cut off"
            self.gate.log.end(request)
        return False

    async def _part(self) -> None:
        """Hangs up so that what was written arrives: a close with unread bytes would lose it."""
        self.writer.write_eof()
        async with asyncio.timeout(PART_S):
            while await self.reader.read(READ_BYTES):
                continue

    async def _wait_for_request(self) -> bool:
        if self.talk.trailing_data[0]:
            return True
        async with asyncio.timeout(IDLE_S):
            data = await self.reader.read(READ_BYTES)
        self.talk.receive_data(data)
        return bool(data)

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self.talk.next_event()) is h11.NEED_DATA:
            if self.talk.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                self.writer.write(self.talk.send(go_on))
            self.talk.receive_data(await self.reader.read(READ_BYTES))
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    # --- one request ----------------------------------------------------------------------------

    async def _serve(self, request: Request, event: h11.Request) -> bool:
        request.method = event.method.decode("ascii")[:20]
        request.host = event.target.decode("ascii")[:253]  # until it is understood
        if event.method == b"CONNECT":
            request.host, request.port = _authority(event.target, None)
            if any(name in (b"content-length", b"transfer-encoding") for name, _ in event.headers):
                raise Refusal(400, "a tunnel is asked for without a body")
            await self._tunnel(request)
            return False
        request.host, request.port, path = _absolute(event.target)
        _check_headers(event, request)
        line = await self.gate.admit(request, tunnel=False)
        try:
            return await self._forward(request, event, line, path)
        finally:
            line.writer.transport.abort()

    async def _tunnel(self, request: Request) -> None:
        line = await self.gate.admit(request, tunnel=True)
        try:
            self.writer.write(
                self.talk.send(h11.Response(status_code=200, headers=[], reason="OK"))
            )
            early = self.talk.trailing_data[0]
            await Tunnel(self.gate, request, self.reader, self.writer, line).run(early)
        finally:
            await part(line.writer)

    async def _forward(self, request: Request, event: h11.Request, line: Line, path: bytes) -> bool:
        """Passes a request on and its answer back, both as they come."""
        ours = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES)
        default = "" if request.port == 80 else f":{request.port}"
        host = f"{bracketed(request.host)}{default}".encode()
        headers = [(b"Host", host), *_passed(event.headers.raw_items()), (b"Connection", b"close")]
        if any(name == b"transfer-encoding" for name, _ in event.headers):
            headers.append((b"Transfer-Encoding", b"chunked"))
        target = path
        if line.proxied is not None:
            target = b"http://" + host + path
            headers += [(name.encode(), value.encode()) for name, value in line.proxied]
        head = h11.Request(method=event.method, target=target, headers=headers)
        try:
            await self._up(request, line, ours.send(head))
        except ConnectionError as error:
            raise Refusal(502, "the host hung up", "failed") from error
        body = asyncio.ensure_future(self._send_body(request, ours, line))
        try:
            await self._answer(request, ours, line)
        except (Refusal, OSError) as error:
            if body.done() and not body.cancelled() and (cause := body.exception()) is not None:
                raise cause from error
            raise
        finally:
            body.cancel()
            await asyncio.gather(body, return_exceptions=True)
        request.decision = "allowed"
        return self.talk.our_state is h11.DONE and self.talk.their_state is h11.DONE

    async def _send_body(self, request: Request, ours: h11.Connection, line: Line) -> None:
        """Passes the request's body on; an answer may come before it ends."""
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    event = await self._next()
                if not isinstance(event, h11.Data | h11.EndOfMessage):
                    raise Refusal(400, "the body was not sent to its end")
                over = isinstance(event, h11.EndOfMessage)  # trailers are dropped
                try:
                    await self._up(request, line, ours.send(h11.EndOfMessage() if over else event))
                except ConnectionError:
                    return  # the host takes no more; what it says is read all the same
                if over:
                    return
        except BaseException:
            # The answer cannot come any more: end the wait for it.
            line.writer.transport.abort()
            raise

    async def _up(self, request: Request, line: Line, data: bytes | None) -> None:
        if not data:
            return
        granted = self.gate.meter.grant(len(data), up=True)
        request.up += granted
        line.writer.write(data[:granted])
        if granted < len(data):
            raise Refusal(403, "the bytes allowed are used up")
        await self.gate.meter.pace(granted)
        async with asyncio.timeout(IDLE_S):
            await line.writer.drain()

    async def _answer(self, request: Request, ours: h11.Connection, line: Line) -> None:
        try:
            while True:
                event = ours.next_event()
                if event is h11.NEED_DATA:
                    await self._down(request, ours, line)
                elif isinstance(event, h11.Response):
                    request.status = event.status_code
                    head = h11.Response(
                        status_code=event.status_code,
                        headers=_passed(event.headers.raw_items()),
                        reason=event.reason,
                    )
                    await self._back(head)
                elif isinstance(event, h11.Data):
                    await self._back(event)
                elif isinstance(event, h11.EndOfMessage):
                    await self._back(h11.EndOfMessage())
                    return
                elif not isinstance(event, h11.InformationalResponse):
                    raise Refusal(502, "the host did not answer", "failed")
        except h11.ProtocolError as error:
            raise Refusal(
                502, f"the host's answer is malformed: {error}"[:200], "failed"
            ) from error

    async def _down(self, request: Request, ours: h11.Connection, line: Line) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                data = await line.reader.read(READ_BYTES)
        except TimeoutError as error:
            raise Refusal(504, "the host does not answer", "failed") from error
        except OSError as error:
            raise Refusal(502, "the host hung up", "failed") from error
        granted = self.gate.meter.grant(len(data), up=False)
        request.down += granted
        if granted < len(data):
            raise Refusal(403, "the bytes allowed are used up")
        await self.gate.meter.pace(granted)
        ours.receive_data(data)

    async def _back(self, event: h11.Event) -> None:
        data = self.talk.send(event)
        if data:
            self.writer.write(data)
        async with asyncio.timeout(IDLE_S):
            await self.writer.drain()

    async def _refuse(self, refusal: Refusal) -> None:
        """Says why, if an answer can still be given, and hangs up."""
        if self.talk.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        said = "".join(c if c.isascii() and c.isprintable() else "?" for c in refusal.reason)
        told = f"{refusal.decision} by the sandbox's proxy: {said}"
        text = f"{told}\n".encode()
        headers = [
            ("Content-Type", "text/plain"),
            ("Content-Length", str(len(text))),
            ("Connection", "close"),
            ("X-Sandbox-Network", refusal.decision),
        ]
        # Programs show the reason phrase where they show nothing else.
        response = h11.Response(status_code=refusal.status, headers=headers, reason=told)
        for event in (response, h11.Data(data=text), h11.EndOfMessage()):
            self.writer.write(self.talk.send(event) or b"")


def _authority(raw: bytes, default: int | None) -> tuple[str, int]:
    try:
        return split_port(raw.decode("ascii"), default)
    except (BadName, UnicodeDecodeError) as error:
        raise Refusal(400, str(error)) from error


def _absolute(target: bytes) -> tuple[str, int, bytes]:
    """Host, port and the rest of `http://host:port/path?query`."""
    scheme, mark, rest = target.partition(b"://")
    if not mark or scheme.lower() != b"http":
        what = "https goes through CONNECT" if scheme.lower() == b"https" else "no http:// URL"
        raise Refusal(400, what)
    ends = [at for at in (rest.find(b"/"), rest.find(b"?"), rest.find(b"#")) if at >= 0]
    end = min(ends, default=len(rest))
    host, port = _authority(rest[:end], 80)
    path = rest[end:].partition(b"#")[0]
    return host, port, path if path.startswith(b"/") else b"/" + path


def _check_headers(event: h11.Request, request: Request) -> None:
    names = [name for name, _ in event.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Refusal(400, "both Content-Length and Transfer-Encoding")
    for name, value in event.headers:
        if name == b"host" and _authority(value, 80) != (request.host, request.port):
            raise Refusal(403, "the Host header names another host than the URL")


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that belong to the message, not to the connection that it came over."""
    pairs = list(headers)
    named = {
        word.strip().lower()
        for name, value in pairs
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    dropped = HOP_BY_HOP | named | {b"host"}
    passed = [(name, value) for name, value in pairs if name.lower() not in dropped]
    if any(name.lower() == b"transfer-encoding" for name, _ in pairs):
        passed = [(name, value) for name, value in passed if name.lower() != b"content-length"]
    return passed
