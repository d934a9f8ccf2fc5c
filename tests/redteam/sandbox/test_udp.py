"""Attack: UDP to the host, and a DNS question to its resolver."""

from __future__ import annotations

import socket

SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.sendto(bytes.fromhex(sys.argv[2]), ("127.0.0.1", int(sys.argv[1])))
"""
QUESTION = "abcd01000001000000000000076578616d706c6503636f6d0000010001"


async def test_datagram(sandbox, unprotected, python):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(2)
        port = server.getsockname()[1]
        unprotected(python(SEND, port, QUESTION, inside=False))
        assert server.recv(100).hex() == QUESTION
        server.settimeout(0.5)
        await sandbox.exec(python(SEND, port, QUESTION, inside=True))
        try:
            got = server.recv(100)
        except TimeoutError:
            got = b""
    assert got == b""


async def test_names(sandbox):
    """No name resolves, and the answer comes at once."""
    code = "import socket; socket.getaddrinfo('example.com', 80)"
    run = await sandbox.exec(["python3", "-c", code], timeout_s=5)
    assert "gaierror" in run.error_text, run
