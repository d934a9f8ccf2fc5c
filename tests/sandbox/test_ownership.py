"""Nothing outlives its owner: processes, mounts, control groups, folders."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import IsolationError, SandboxError
from quintain.sandbox import cgroups
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec
from soak.listing import marked

MARK = str(1_000_000 + os.getpid())
OWNER = """
import asyncio, sys
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

async def main():
    backend = NativeBackend(launcher=sys.argv[1])
    boxes = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(4)))
    runs = [asyncio.create_task(box.exec(["sh", "-c", "setsid sleep MARK & sleep MARK"],
            timeout_s=1000)) for box in boxes]
    while True:
        await asyncio.sleep(0.1)
        seen = await asyncio.gather(*(box.exec(["sh", "-c", "ps ax | grep -c '[s]leep MARK'"])
                                      for box in boxes))
        if all(int(run.text) >= 2 for run in seen):
            break
    print(list(backend._servers.values())[0]._process.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def _processes():
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if MARK.encode() in line and line.startswith((b"sleep", b"sh")):
            found.add(int(entry.parent.name))
    return found


def _groups():
    places = cgroups.find().places()
    return sorted(
        f"{place}/{name}"
        for place in places
        for name in os.listdir(place)
        if name.startswith(cgroups.PREFIX)
    )


def _mounts():
    """What is mounted on the host, apart from what other programs mount in folders of their own."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if not line.split()[1].startswith(("/tmp/", "/run/", "/var/"))]


def _wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
async def possible():
    backend = NativeBackend()
    try:
        await (await backend.open(SandboxSpec())).close()
    except IsolationError as error:
        pytest.skip(f"no native sandbox here: {error}")
    finally:
        await backend.close()


@pytest.mark.parametrize("launcher", ["c", "python"])
@pytest.mark.parametrize("victims", ["owner", "server", "both"])
def test_sigkill(possible, tmp_path, launcher, victims):
    """Owner, server or both die by SIGKILL with sandboxes open and busy."""
    before = (_processes(), _mounts())
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("MARK", MARK), launcher],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        server = int(owner.stdout.readline())
        mine = f"{cgroups.PREFIX}{owner.pid}-"
        assert len(_processes()) >= 8
        assert any(mine in group for group in _groups())
        if victims in ("server", "both"):
            os.kill(server, signal.SIGKILL)
        if victims in ("owner", "both"):
            owner.kill()
        assert _wait_until(lambda: not _processes()), _processes()
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert _wait_until(lambda: not Path(f"/proc/{server}").exists() or _is_zombie(server))
    if victims != "owner":
        cgroups.sweep(cgroups.find())
    assert _wait_until(lambda: not any(mine in group for group in _groups())), _groups()
    assert (_processes(), _mounts()) == before
    assert os.listdir(tmp_path) == []


def _is_zombie(pid):
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


async def test_close_leaves_nothing(possible):
    groups, mounts = set(_groups()), _mounts()
    backend = NativeBackend()
    boxes = [await backend.open(SandboxSpec()) for _ in range(3)]
    await boxes[0].exec(["sh", "-c", f"setsid sleep {MARK} >/dev/null 2>&1 &"])
    inside = [group for group in set(_groups()) - groups if f"-{os.getpid()}-" in group]
    assert inside
    for box in boxes:
        await box.close()
    assert all(os.listdir(group) and not _children(group) for group in inside)
    await backend.close()
    assert not [group for group in set(_groups()) - groups if f"-{os.getpid()}-" in group]
    assert _mounts() == mounts
    assert not _processes()


def _children(group):
    return [entry.name for entry in os.scandir(group) if entry.is_dir()]


async def test_a_dead_server_breaks_its_sandboxes_and_is_replaced(possible):
    backend = NativeBackend()
    try:
        box = await backend.open(SandboxSpec())
        (server,) = backend._servers.values()
        os.kill(server._process.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await box.exec(["sleep", "30"])
        other = await backend.open(SandboxSpec())
        assert (await other.exec(["echo", "again"])).text == "again\n"
        await box.close()
        await other.close()
    finally:
        await backend.close()
    assert _wait_until(lambda: not [g for g in _groups() if f"-{os.getpid()}-" in g]), _groups()


SOAK = Path(__file__).resolve().parents[1] / "soak" / "soak_sandbox.py"


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment(possible, tmp_path, seed):
    """An owner dies somewhere in opening, running, a shell, a snapshot, closing: nothing stays."""
    rng = random.Random(seed)
    mark = f"any-moment-{os.getpid()}-{seed}"
    folders = _folders()
    owner = subprocess.Popen(
        [sys.executable, str(SOAK), "--own", "100000", str(seed), mark],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        for _ in range(rng.randrange(1, 12)):
            assert owner.stdout.read(1) == b"."
        time.sleep(rng.random() * 0.1)
        mine = f"{cgroups.PREFIX}{owner.pid}-"
        assert any(mine in group for group in _groups()), "the listing sees its groups"
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert _wait_until(lambda: not marked([mark])), marked([mark])
    assert _wait_until(lambda: not any(mine in group for group in _groups())), _groups()
    mounted = Path("/proc/self/mounts").read_text()
    assert mine not in mounted
    assert str(tmp_path) not in mounted
    assert os.listdir(tmp_path) == []
    assert _folders() - folders == set()


def _folders():
    """What lies where sandboxes could leave something: caches are for those that come after."""
    return {f"{place}/{name}" for place in ("/dev/shm", "/run") for name in os.listdir(place)}
