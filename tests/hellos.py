"""TLS hellos, written by hand, and a server that asks for a second one."""

from __future__ import annotations

import asyncio
import os

RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def _block(width, data):
    return len(data).to_bytes(width, "big") + data


def client_hello(name, *, extensions=(), pieces=1):
    """A client hello in as many records as wanted; `extensions`: (number, content)."""
    found = []
    if name is not None:
        found.append((0, _block(2, b"\0" + _block(2, name.encode()))))
    found += [*extensions, (43, b"\x02\x03\x04")]
    packed = b"".join(kind.to_bytes(2, "big") + _block(2, data) for kind, data in found)
    body = b"\x03\x03" + os.urandom(32) + _block(1, b"") + _block(2, b"\x13\x01")
    body += _block(1, b"\0") + _block(2, packed)
    message = b"\x01" + _block(3, body)
    step = -(-len(message) // pieces)
    parts = [message[at : at + step] for at in range(0, len(message), step)]
    return b"".join(b"\x16\x03\x01" + _block(2, part) for part in parts)


def retry_request():
    """A server's wish for another hello."""
    body = b"\x03\x03" + RETRY + _block(1, b"") + b"\x13\x01\0" + _block(2, b"\0\x2b\0\x02\x03\x04")
    return b"\x16\x03\x03" + _block(2, b"\x02" + _block(3, body))


def server_hello():
    """An ordinary answer, after which everything is encrypted."""
    body = (
        b"\x03\x03"
        + b"r" * 32
        + _block(1, b"")
        + b"\x13\x01\0"
        + _block(2, b"\0\x2b\0\x02\x03\x04")
    )
    return b"\x16\x03\x03" + _block(2, b"\x02" + _block(3, body))


class HelloServer:
    """Answers the first bytes of each connection with the given records; keeps all it got."""

    def __init__(self, answer):
        self.answer = answer
        self.got = []
        self.port = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        at = len(self.got)
        self.got.append(b"")
        try:
            while data := await reader.read(65536):
                if not self.got[at]:
                    writer.write(self.answer)
                self.got[at] += data
        except OSError:
            return
        finally:
            writer.close()
