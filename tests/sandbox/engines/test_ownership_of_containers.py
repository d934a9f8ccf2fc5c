"""Nothing of a container outlives its owner, shown by listings before and after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from quintain.registry import sandboxes
from quintain.sandbox.engines import oci, owners
from quintain.sandbox.engines.engine import DockerBackend
from quintain.task import SandboxSpec

MARK = str(2_000_000 + os.getpid())
OWNER = """
import asyncio, sys
from quintain.registry import sandboxes
from quintain.task import SandboxSpec

async def main():
    backend = sandboxes.get(sys.argv[1])()
    boxes = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(2)))
    runs = [asyncio.create_task(box.exec(["sh", "-c", "touch up; setsid sleep MARK & sleep MARK"],
            timeout_s=1000)) for box in boxes]
    for box in boxes:
        while not (await box.exec(["test", "-e", "up"])).ok:
            await asyncio.sleep(0.05)
    print("up", flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def _listing(owner):
    """What of an owner is there: processes, folders, control groups, mounts."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if MARK.encode() in line or f"/{owner}-".encode() in line:
            found.append(line.decode("utf-8", "replace"))
    if os.path.isdir(oci.BASE):
        found += [name for name in os.listdir(oci.BASE) if name.startswith(f"{owner}-")]
    found += [str(p) for p in Path("/sys/fs/cgroup").rglob(f"quintain-{owner}-*")]
    found += [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if f"/{owner}-" in line
    ]
    return found


def _wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


async def _containers(backend, pid):
    if not hasattr(backend, "address"):
        return []
    use = await backend._use()
    found = await use.engine.call("GET", "/containers/json", query={"all": "1"})
    return [one for one in found if any(f"quintain-{pid}-" in name for name in one["Names"])]


async def test_sigkill(backend):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("MARK", MARK), backend.name], stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout.readline() == b"up\n"
        if hasattr(backend, "address"):
            assert len(await _containers(backend, owner.pid)) == 2
        else:
            assert len(_listing(owner.pid)) >= 2
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    gone = _wait_until(lambda: not [line for line in _listing(owner.pid) if MARK in line])
    assert gone, _listing(owner.pid)
    if hasattr(backend, "address"):
        for _ in range(200):
            if not await _containers(backend, owner.pid):
                break
            time.sleep(0.05)
        assert await _containers(backend, owner.pid) == []
    else:
        oci.sweep()
        assert _wait_until(lambda: not _listing(owner.pid), 10), _listing(owner.pid)


async def test_a_container_of_a_dead_owner_is_swept_at_the_next_start(engine):
    """One that could not end by itself: it reads no owner's words, and the engine keeps it."""
    gone = subprocess.Popen(["sleep", "100"])
    label = owners.mine().partition(".")[2].partition(".")[2]
    label = f"{gone.pid}.{oci.cgroups.start_time(gone.pid)}.{label}"
    box = await engine.open(SandboxSpec())
    use = await engine._use()
    image = await use.images.get(SandboxSpec())
    body = {
        "Image": image.id,
        "Entrypoint": ["/usr/bin/sleep", "1000"],
        "Labels": {owners.LABEL: label},
        "HostConfig": {
            "NetworkMode": "none",
            "Mounts": [{"Type": "bind", "Source": "/usr", "Target": "/usr", "ReadOnly": True}],
            **({} if isinstance(engine, DockerBackend) else {"Ulimits": _few()}),
        },
    }
    name = f"quintain-{gone.pid}-left"
    await use.engine.call("POST", "/containers/create", query={"name": name}, body=body)
    await use.engine.call("POST", f"/containers/{name}/start")
    try:
        assert await engine.sweep() == [], "its owner lives"
        assert len(await _containers(engine, gone.pid)) == 1
    finally:
        gone.kill()
        gone.wait()
    other = sandboxes.get(engine.name)()
    await (await other.open(SandboxSpec())).close()
    await other.close()
    assert await _containers(engine, gone.pid) == []
    assert (await box.exec(["echo", "mine stays"])).ok
    await box.close()


def _few():
    return [{"Name": name, "Soft": 4096, "Hard": 4096} for name in ("nofile", "nproc")]


async def test_killed_with_its_script_it_is_swept(runtime, tmp_path):
    """Owner, script and runtime die at once; the next start finds the rest."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("MARK", MARK), runtime.name],
        stdout=subprocess.PIPE,
    )
    assert owner.stdout.readline() == b"up\n"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        line = entry.read_bytes()
        if f"/{owner.pid}-".encode() in line and b"--bundle" in line:
            os.kill(int(entry.parent.name), signal.SIGKILL)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert [name for name in os.listdir(oci.BASE) if name.startswith(f"{owner.pid}-")]
    await (await runtime.open(SandboxSpec())).close()
    assert _wait_until(lambda: not _listing(owner.pid), 10), _listing(owner.pid)


async def test_close_leaves_nothing(backend):
    boxes = [await backend.open(SandboxSpec()) for _ in range(2)]
    await boxes[0].exec(["sh", "-c", f"setsid sleep {MARK} >/dev/null 2>&1 &"])
    await boxes[0].close()
    await backend.close()
    assert _listing(os.getpid()) == []
    assert await _containers(backend, os.getpid()) == []
