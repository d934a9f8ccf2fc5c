"""The native backend for an ordinary user: the same contract, missing limits refused by name."""

from __future__ import annotations

import pytest

SCRIPT = """
import asyncio, sys
from quintain.errors import IsolationError
from quintain.sandbox import host
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec
from quintain.testing import check_sandbox

async def main():
    assert host.look().rootless
    strict = NativeBackend(launcher=sys.argv[1])
    try:
        box = await strict.open(SandboxSpec())
        assert "memory" in host.look().groups.folders
        await box.close()
    except IsolationError as error:
        print("refused:", *error.missing)
        if "namespaces" in error.missing:
            return
    await strict.close()
    weaker = NativeBackend(launcher=sys.argv[1], allow_weaker=True)
    box = await weaker.open(SandboxSpec(max_pids=30))
    print("told:", *box.missing)
    code = "import os\\nfor i in range(100): os.fork() or __import__('signal').pause()"
    run = await box.exec(["python3", "-c", code], timeout_s=20)
    assert "BlockingIOError" in run.error_text, run
    run = await box.exec(["sh", "-c", "kill -9 -1; sleep 100"], timeout_s=20)
    assert run.exit_code == -9, run
    run = await box.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep"])
    assert run.text.strip() == "0", run
    run = await box.exec(["sh", "-c", "echo x > /proc/cmdline; echo x >> /etc/passwd"])
    assert run.exit_code != 0
    await check_sandbox(weaker)
    if sys.argv[1] == "c":
        warm = await weaker.warm(SandboxSpec(), ("json",))
        run = await warm.run_python("import os, sys; print('json' in sys.modules, os.getuid())")
        assert run.text == "True 1000\\n", run
        run = await warm.run_python("open('/etc/passwd', 'a')")
        assert run.exit_code == 1, run
    await weaker.close()
    print("fine")

asyncio.run(main())
"""


@pytest.mark.parametrize("launcher", ["auto", "python"])
def test_contract(as_ordinary_user, launcher):
    done = as_ordinary_user(SCRIPT, launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    if "namespaces" in done.stdout:
        pytest.skip(f"this host gives ordinary users no namespaces: {done.stdout}")
    assert "refused: memory cpus" in done.stdout, done.stdout
    assert "told: memory cpus" in done.stdout
    assert done.stdout.endswith("fine\n")


NETWORK = """
import asyncio, sys
from quintain.errors import IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.task import NetworkPolicy, SandboxSpec

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())"

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello")
    await writer.drain()
    writer.close()

async def resolve(name):
    return ["127.0.0.1"]

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = NativeBackend(launcher=sys.argv[1], resolve=resolve, allow_weaker=True)
    policy = NetworkPolicy(private_hosts=[f"site.test:{port}"])
    try:
        box = await backend.open(SandboxSpec(network=policy))
    except IsolationError as error:
        print("namespaces", error)
        return
    for name in ("site.test", "other.test"):
        run = await box.exec(["python3", "-c", FETCH, f"http://{name}:{port}/"])
        print(run.text, run.error_text.strip().splitlines()[-1:])
    await backend.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("launcher", ["auto", "python"])
def test_network(as_ordinary_user, launcher):
    done = as_ordinary_user(NETWORK, launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout.startswith("namespaces"):
        pytest.skip(f"this host gives ordinary users no namespaces: {done.stdout}")
    assert "hello" in done.stdout, done
    assert "403" in done.stdout
    assert "not listed" in done.stdout
