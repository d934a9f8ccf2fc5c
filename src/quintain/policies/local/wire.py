"""Frames between a policy and its engine's process: four bytes of length, then JSON."""

from __future__ import annotations

import json
import socket
import struct

from quintain.record import Json

_HEADER = struct.Struct("<I")


def send(connection: socket.socket, message: Json) -> None:
    """Sends one message."""
    data = json.dumps(message, separators=(",", ":")).encode()
    connection.sendall(_HEADER.pack(len(data)) + data)


def receive(connection: socket.socket) -> Json | None:
    """The next message; None when the other side is gone."""
    header = _exactly(connection, _HEADER.size)
    if header is None:
        return None
    data = _exactly(connection, _HEADER.unpack(header)[0])
    return None if data is None else json.loads(data)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    buffer = bytearray()
    while len(buffer) < count:
        try:
            piece = connection.recv(min(count - len(buffer), 1 << 20))
        except OSError:
            return None
        if not piece:
            return None
        buffer += piece
    return bytes(buffer)
