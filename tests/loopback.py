"""Servers on loopback that stand for hosts of the network, and a certificate authority for them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field

import trustme

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@dataclass
class Site:
    """A server that keeps what it gets and gives one answer to each request head."""

    answer: bytes = ANSWER
    port: int = 0
    got: list[bytes] = field(default_factory=list)
    """What each connection sent, whole."""
    context: ssl.SSLContext | None = None
    close_after: bool = True
    host: str = "127.0.0.1"
    _server: asyncio.Server | None = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        at = len(self.got)
        self.got.append(b"")
        with contextlib.suppress(OSError):
            answered = False
            while data := await reader.read(65536):
                self.got[at] += data
                if not answered and b"\r\n\r\n" in self.got[at]:
                    answered = True
                    writer.write(self.answer)
                    await writer.drain()
                    if self.close_after:
                        break
        writer.close()


class Names:
    """A resolver of a table: name to the answers it gives in turn, the last one for good."""

    def __init__(self, **answers):
        self.answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked = []

    async def __call__(self, name):
        self.asked.append(name)
        if name not in self.answers:
            raise OSError(-2, "no such name")
        turns = self.answers[name]
        return turns[0] if len(turns) == 1 else turns.pop(0)


class Authority:
    """A certificate authority; `trust` is the file to believe it by."""

    def __init__(self, folder):
        self._ca = trustme.CA()
        self.trust = str(folder / "authority.pem")
        self._ca.cert_pem.write_to_path(self.trust)

    def server(self, *names):
        """A server's context for these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        return context

    def client(self):
        """A client's context that believes it."""
        return ssl.create_default_context(cafile=self.trust)


async def say(port, *pieces, pause_s=0.0, wait=True, host="127.0.0.1"):
    """Sends raw bytes to a port; returns all that came back until it hung up."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)
        if not wait:
            writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.close()
