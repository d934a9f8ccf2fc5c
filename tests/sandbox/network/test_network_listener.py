"""A listener in the namespace of a process that runs already, as containers need it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from loopback import Names, Site
from quintain.errors import SandboxError
from quintain.sandbox.network import PORT, Proxy, listen_inside
from quintain.task import NetworkPolicy

INSIDE = """
import sys, urllib.request
print("ready", flush=True)
sys.stdin.readline()
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""


@pytest.fixture
def elsewhere():
    """Starts a program in a network namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    started = []

    def start(code, *arguments):
        argv = ["unshare", "--net", sys.executable, "-c", code, *arguments]
        env = {**os.environ, "http_proxy": f"http://127.0.0.1:{PORT}"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(argv, env=env, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def test_a_process_in_another_namespace_gets_out(elsewhere):
    proxy = Proxy(resolve=Names(site_test=[["127.0.0.1"]]), proxies={})
    async with Site() as site:
        process = elsewhere(INSIDE, f"http://site.test:{site.port}/")
        assert process.stdout.readline() == "ready\n"
        policy = NetworkPolicy(private_hosts=[f"site.test:{site.port}"])
        gate = await proxy.serve(listen_inside(process.pid, PORT), policy)
        answer, _ = await asyncio.to_thread(process.communicate, "go\n", 20)
    assert answer == "hello\n"
    assert [event.data["decision"] for event in gate.log.events()] == ["allowed"]
    await proxy.close()
    # The thread that entered the namespace is gone: this process is where it was.
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_a_process_that_is_gone_is_told():
    with pytest.raises(SandboxError, match="process 4194303"):
        listen_inside(4194303, PORT)
