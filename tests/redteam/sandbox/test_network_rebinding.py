"""Attack: a listed host whose name has a public address when it is checked, and then a private one.

Everything happens in a network namespace of the test's own, whose loopback has a public address.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from loopback import Names, Site, say
from quintain.sandbox.network import Proxy
from quintain.sandbox.network.names import is_public
from quintain.task import NetworkPolicy
import socket

PUBLIC = "11.22.33.44"

class Naive:
    '''Checks the name's address, then connects by the name, which is resolved again.'''
    def __init__(self, resolve):
        self.resolve = resolve
    async def fetch(self, name, port):
        (address, *_) = await self.resolve(name)
        assert is_public(address)
        (address, *_) = await self.resolve(name)
        return await say(port, b"GET / HTTP/1.1\\r\\n\\r\\n", host=address)

async def main():
    async with Site(answer=b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nsecret") as secret:
        public = await asyncio.start_server(serve, PUBLIC, secret.port)
        port = secret.port
        turns = [[PUBLIC], ["127.0.0.1"], [PUBLIC, "127.0.0.1"], ["169.254.169.254"], [PUBLIC]]
        print("naive", b"secret" in await Naive(Names(re_test=turns)).fetch("re.test", port))
        for policy in ({"hosts": [f"re.test:{port}"]}, {"mode": "open", "ports": [port]}):
            proxy = Proxy(resolve=Names(re_test=turns), proxies={})
            listener = socket.create_server(("127.0.0.1", 0))
            gate = await proxy.serve(listener, NetworkPolicy(**policy))
            where = f"re.test:{port}"
            request = f"GET http://{where}/ HTTP/1.1\\r\\nHost: {where}\\r\\n\\r\\n".encode()
            for _ in turns:
                answer = await say(listener.getsockname()[1], request, wait=False)
                print(answer[9:12].decode(), "secret" if b"secret" in answer else "")
            await proxy.close()
        public.close()
    print("reached", len(secret.got))

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    await writer.drain()
    writer.close()

asyncio.run(main())
"""


def test_rebinding(as_root, tmp_path):
    if not shutil.which("ip"):
        pytest.skip("the namespace needs the ip program (iproute2)")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    tests = Path(__file__).parents[2]
    prepare = 'ip link set lo up && ip addr add 11.22.33.44/32 dev lo && exec "$@"'
    argv = ["unshare", "--net", "sh", "-c", prepare, "sh", sys.executable, str(script), str(tests)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    run = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path}
    )
    expected = ["200", "403", "200", "403", "200"]
    assert run.stdout.split() == ["naive", "True", *expected * 2, "reached", "1"], run
