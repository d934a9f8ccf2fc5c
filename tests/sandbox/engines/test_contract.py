"""The sandbox contract over every container backend, and what programs inside need."""

from __future__ import annotations

import asyncio

import pytest

from quintain.errors import CapabilityError, SandboxError
from quintain.task import SandboxSpec
from quintain.testing import check_sandbox


async def test_contract(backend):
    await check_sandbox(backend)


async def test_programs_inside_have_what_they_need(box):
    code = """
import asyncio, multiprocessing, os, socket, subprocess, tempfile
def double(x): return 2 * x
async def main():
    process = await asyncio.create_subprocess_exec("echo", "a", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]
if __name__ == "__main__":
    print(asyncio.run(main()))
    with multiprocessing.Pool(2) as pool:
        print(pool.map(double, [1, 2]))
    with tempfile.NamedTemporaryFile() as file:
        print(os.path.dirname(file.name))
    a, b = socket.socketpair()
    a.send(b"x"); print(b.recv(1))
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    server.accept()[0].sendall(b"ok"); print(client.recv(2))
    print(socket.gethostname(), os.path.expanduser("~"))
    master, slave = os.openpty()
    print(os.ttyname(slave).startswith("/dev/pts/"), os.access("/dev/null", os.W_OK))
"""
    await box.write("main.py", code)
    run = await box.exec(["python3", "main.py"])
    assert run.text.splitlines() == [
        "b'a\\n'",
        "[2, 4]",
        "/tmp",
        "b'x'",
        "b'ok'",
        "sandbox /home/sandbox",
        "True True",
    ], run


async def test_every_process_is_without_rights(box):
    run = await box.exec(["cat", "/proc/self/status"])
    state = dict(line.split(":\t") for line in run.text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
        assert int(state[name], 16) == 0, name
    assert state.get("NoNewPrivs", "1") == "1"  # gVisor does not tell
    assert state["Seccomp"] == "2"
    assert state["Uid"].split() == ["1000"] * 4
    assert state["Groups"].strip() == ""


async def test_root_inside_has_no_rights(backend):
    if backend.name == "gvisor":
        with pytest.raises(CapabilityError, match="root"):
            await backend.open(SandboxSpec(user="root"))
        return
    box = await backend.open(SandboxSpec(user="root"))
    script = "id -u; grep CapEff /proc/self/status; kill -9 1; mount -t tmpfs x /mnt"
    run = await box.exec(["sh", "-c", script])
    again = await box.exec(["echo", "alive"])
    await box.close()
    assert run.text.split()[0] == "0"
    assert int(run.text.split()[-1], 16) == 0
    assert run.exit_code != 0
    assert again.text == "alive\n"


async def test_an_exit_code_is_no_signal(box):
    assert (await box.exec(["sh", "-c", "exit 137"])).exit_code == 137
    assert (await box.exec(["sh", "-c", "kill -15 $$"])).exit_code == -15


async def test_a_cancelled_command_is_killed(box):
    task = asyncio.create_task(box.exec(["sh", "-c", "sleep 500 & setsid sleep 500; sleep 500"]))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        run = await box.exec(["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep"])
        if run.text.strip() == "0":
            break
        await asyncio.sleep(0.05)
    assert run.text.strip() == "0"


async def test_a_sandbox_is_over_when_closed(box):
    running = asyncio.create_task(box.exec(["sleep", "100"]))
    await asyncio.sleep(0.3)
    await box.close()
    await box.close()
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await box.read("x")


async def test_a_long_file_and_a_stubborn_reader(box):
    """Input is taken piece by piece: what nobody reads is not kept inside."""
    big = bytes(range(256)) * 20_000
    assert (await box.exec(["true"], stdin=big)).ok
    run = await box.exec(["sh", "-c", "sleep 0.2; md5sum"], stdin=big)
    await box.write("big", big)
    assert (await box.exec(["md5sum", "big"])).text.split()[0] == run.text.split()[0]
    assert await box.read("big") == big


async def test_probe(backend):
    found = await backend.probe()
    assert found.available, found
    for wall in ("files", "network", "capabilities", "memory", "disk", "time", "output"):
        assert wall in found.enforced, found
    assert found.details["version"]
