"""Attack: hold every connection of the proxy by sending a byte now and then."""

from __future__ import annotations

import asyncio
import time

from loopback import Site
from quintain.sandbox.network import exchange, tunnel

HOLD = """
import socket, sys, time
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5) for _ in range(3)]
print("held", flush=True)
opening = bytes.fromhex(sys.argv[3])
for s in held:
    s.sendall(opening)
end = time.monotonic() + float(sys.argv[2])
while held and time.monotonic() < end:
    for s in list(held):
        try:
            s.sendall(b"x")
        except OSError:
            held.remove(s)
    time.sleep(0.05)
print("left", len(held))
"""


async def slow_server(reader, writer):
    """Waits for a request as long as it takes."""
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def test_slow_heads_and_hellos(networked, unprotected, python, raw, monkeypatch):
    monkeypatch.setattr(exchange, "HEAD_S", 0.5)
    monkeypatch.setattr(exchange, "PART_S", 0.5)
    monkeypatch.setattr(tunnel, "HELLO_S", 0.5)
    server = await asyncio.start_server(slow_server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    control = python(HOLD, port, 1.5, b"GET / HTTP/1.1\r\nX: ".hex(), inside=False)
    run = await asyncio.to_thread(unprotected, control)
    assert run.stdout.split() == ["held", "left", "3"], run
    server.close()
    async with Site(close_after=False) as site:
        where = f"site.test:{site.port}"
        sandbox = await networked(private_hosts=[where], max_connections=2)
        head = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\nX: "
        hello = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n\x16\x03\x01\x02\x00\x01"
        for opening in (head, hello):
            argv = python(HOLD, 3128, 30, opening.encode().hex(), inside=True)
            attack = asyncio.create_task(sandbox.exec(argv))
            await asyncio.sleep(0.3)
            began = time.monotonic()
            good = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n"
            assert "hello" in await raw(sandbox, good, then_close=True)
            assert time.monotonic() - began < 25
            run = await attack
            assert run.text.split() == ["held", "left", "0"], run
