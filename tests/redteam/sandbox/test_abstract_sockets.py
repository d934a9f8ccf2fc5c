"""Attack: an abstract UNIX socket, which has no place in the file system."""

from __future__ import annotations

import secrets
import socket

CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect("\\0" + sys.argv[1])
    print("connected")
"""


async def test_abstract(sandbox, open_sandbox, unprotected, python):
    name = f"quintain-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        assert unprotected(python(CONNECT, name, inside=False)).stdout == "connected\n"
        run = await sandbox.exec(python(CONNECT, name, inside=True))
    assert "ConnectionRefusedError" in run.error_text, run
