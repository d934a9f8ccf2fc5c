"""Attack: reach the owner's other sockets, by the loopback, by abstract names, by the proxy."""

from __future__ import annotations

import asyncio
import secrets
import socket

from loopback import Site

SWEEP = """
import socket, sys
found = []
for port in map(int, sys.argv[2:]):
    for host in ("127.0.0.1", "::1"):
        try:
            socket.create_connection((host, port), timeout=2).close()
            found.append(port)
        except OSError:
            pass
try:
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0" + sys.argv[1])
    found.append("abstract")
except OSError:
    pass
print(*found)
"""


async def test_sockets_of_the_owner(networked, unprotected, python, raw):
    name = f"quintain-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        async with Site() as first, Site() as second:
            ports = [first.port, second.port]
            control = python(SWEEP, name, *ports, inside=False)
            run = await asyncio.to_thread(unprotected, control)
            assert run.stdout.split() == [*map(str, ports), "abstract"], run
            sandbox = await networked(private_hosts=[f"site.test:{first.port}"])
            run = await sandbox.exec(python(SWEEP, name, *ports, 3128, inside=True))
            assert run.text.split() == ["3128"], run
            connects = [
                f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
                for host in ("127.0.0.1", "localhost", "[::1]")
                for port in ports
            ]
            answers = await raw(sandbox, *connects)
    assert all(answer.startswith("HTTP/1.1 403") for answer in answers), answers


async def test_the_owner_holds_the_listening_socket_alone(networked, python):
    """Nobody inside finds the socket, nor can take its port over while it listens."""
    code = (
        "import glob, os, socket\n"
        "print(any('socket:' in os.readlink(p) for p in glob.glob('/proc/1/fd/*')\n"
        "          if os.access(p, os.R_OK)))\n"
        "for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):\n"
        "    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, option, 1)\n"
        "    try:\n"
        "        s.bind(('127.0.0.1', 3128)); s.listen(); print('taken')\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n"
    )
    sandbox = await networked(hosts=["site.test"])
    run = await sandbox.exec(python(code, inside=True))
    assert run.text.split("\n")[1:3] == ["Address already in use"] * 2, run
