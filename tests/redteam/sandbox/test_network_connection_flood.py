"""Attack: open connections until the owner has no descriptors left."""

from __future__ import annotations

import asyncio
import os

from loopback import Site

COUNT = 150
FLOOD = """
import socket, sys, time
port, count, patience = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
held = []
for _ in range(count):
    s = socket.socket()
    s.settimeout(patience)
    try:
        s.connect(("127.0.0.1", port))
    except OSError:
        break
    held.append(s)
time.sleep(1)
print(len(held))
"""


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def most_descriptors(attack):
    """How many more this process has open at most while an attack runs."""
    before = most = descriptors()
    task = asyncio.ensure_future(attack)
    while not task.done():
        await asyncio.sleep(0.05)
        most = max(most, descriptors())
    return await task, most - before


async def test_many_connections(networked, unprotected, python, raw):
    async with Site() as site:
        control = python(FLOOD, site.port, COUNT, 20, inside=False)
        run, more = await most_descriptors(asyncio.to_thread(unprotected, control))
        assert int(run.stdout) == COUNT
        assert more >= COUNT
        where = f"site.test:{site.port}"
        sandbox = await networked(private_hosts=[where], max_connections=8)
        run, more = await most_descriptors(
            sandbox.exec(python(FLOOD, 3128, COUNT, 0.2, inside=True))
        )
        assert 8 <= int(run.text) < COUNT, run
        assert more < 30, "each connection takes one, and the attack's own pipes a few"
        # The flood over, the way out is as it was.
        good = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n"
        assert "hello" in await raw(sandbox, good, then_close=True)
