"""The name in a TLS client hello (RFC 8446, RFC 6066), read strictly from raw records.

Only what is needed is understood; whatever is not exactly as the standard says is refused, since
the host might read it otherwise. A hello may come in many small records; a server may ask for a
second one (a hello retry request), which must name the same host.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_BYTES = 65_536
"""Of a hello with its records' headers."""
HANDSHAKE, CLIENT_HELLO, SERVER_HELLO = 22, 1, 2
SERVER_NAME, ENCRYPTED_HELLO = 0, 0xFE0D
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a server hello that asks for another client hello (RFC 8446, 4.1.3)."""
DENIED = bytes([21, 3, 3, 0, 2, 2, 49])
"""A fatal alert, `access_denied`, as a record."""


class BadHello(ValueError):
    """Not a well-formed client hello."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client hello says in the clear."""

    name: str | None
    """The server's name; None when it names none."""
    encrypted: bool
    """Whether it carries a second, encrypted hello, whose name cannot be seen."""


class _Bytes:
    """Reads fields of a message; too short is a `BadHello`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise BadHello("a field is longer than what holds it")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def block(self, width: int) -> _Bytes:
        return _Bytes(self.take(self.number(width)))

    @property
    def left(self) -> bool:
        return self.at < len(self.data)


def read_hello(records: bytes) -> tuple[Hello, int] | None:
    """The client hello at the start of a stream and its length there; None: more is to come.

    Raises:
        BadHello: the stream does not begin with one.
    """
    message = bytearray()
    at = 0
    while True:
        if len(records) > at and records[at] != HANDSHAKE:
            raise BadHello("no TLS handshake")
        if len(records) > at + 1 and records[at + 1] != 3:
            raise BadHello("no TLS version")
        if len(records) < at + 5:
            break
        length = int.from_bytes(records[at + 3 : at + 5], "big")
        if not 0 < length <= 16_384:
            raise BadHello("a record of an impossible length")
        message += records[at + 5 : at + 5 + length]
        if message[:1] and message[0] != CLIENT_HELLO:
            raise BadHello("no client hello")
        if len(message) >= 4:
            whole = 4 + int.from_bytes(message[1:4], "big")
            if whole > MOST_BYTES:
                raise BadHello("a client hello of an impossible length")
            if len(message) >= whole:
                if len(message) > whole:
                    raise BadHello("something follows in the record of the client hello")
                return _parse(bytes(message[4:])), at + 5 + length
        at += 5 + length
        if len(records) < at:
            break
    if len(records) >= MOST_BYTES:
        raise BadHello("a client hello in too many records")
    return None


def _parse(body: bytes) -> Hello:
    fields = _Bytes(body)
    if fields.take(2)[0] != 3:
        raise BadHello("no TLS version")
    fields.take(32)
    fields.block(1)
    fields.block(2)
    fields.block(1)
    if not fields.left:
        return Hello(None, False)
    extensions = fields.block(2)
    if fields.left:
        raise BadHello("something follows the extensions")
    name: str | None = None
    seen: set[int] = set()
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.block(2)
        if kind in seen:
            raise BadHello("an extension comes twice")
        seen.add(kind)
        if kind == SERVER_NAME:
            name = _server_name(content)
    return Hello(name, ENCRYPTED_HELLO in seen)


def _server_name(content: _Bytes) -> str:
    names = content.block(2)
    if content.left or names.number(1) != 0:
        raise BadHello("the server's name is malformed")
    name = names.block(2).data
    if names.left or not name or not name.isascii():
        raise BadHello("the server's name is malformed")
    return name.decode("ascii")


def asks_again(records: bytes) -> bool | None:
    """Whether a server's first record asks for another client hello; None: more is to come."""
    if records[:1] != bytes([HANDSHAKE]):
        return False if records else None
    if len(records) < 5 + 6 + 32:
        return None
    return records[5] == SERVER_HELLO and records[11:43] == RETRY_RANDOM
