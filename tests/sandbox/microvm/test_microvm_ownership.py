"""No machine outlives its owner, and what files and groups a dead owner left are swept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.sandbox import cgroups
from quintain.sandbox.microvm import templates
from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.task import SandboxSpec

pytestmark = [pytest.mark.microvm, pytest.mark.slow]

OWNER = """
import asyncio
from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.task import SandboxSpec

async def main():
    backend = MicrovmBackend()
    boxes = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(2)))
    for box in boxes:
        asyncio.create_task(box.exec(["sleep", "1000"], timeout_s=1000))
    await asyncio.sleep(0.5)
    print(*(box.process_id for box in boxes), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def _alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def _groups(owner):
    return [
        f"{place}/{name}"
        for place in cgroups.find().places()
        for name in os.listdir(place)
        if name.startswith(f"{cgroups.PREFIX}{owner}-")
    ]


def _mounts():
    """Those that a jail or a guest's disk would make."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if line.startswith("jail ") or "microvm" in line]


def _wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_sigkill_of_the_owner(tmp_path):
    mounts = _mounts()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        machines = [int(word) for word in owner.stdout.readline().split()]
        assert len(machines) == 2
        assert all(_alive(pid) for pid in machines)
        had = _groups(owner.pid)
        owner.kill()
        assert _wait_until(lambda: not any(map(_alive, machines))), machines
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert bool(had) == bool(cgroups.find().places())
    cgroups.sweep(cgroups.find())
    assert _groups(owner.pid) == []
    assert _mounts() == mounts
    assert os.listdir(tmp_path) == []


async def test_close_leaves_nothing():
    backend = MicrovmBackend()
    boxes = [await backend.open(SandboxSpec()) for _ in range(2)]
    machines = [box.process_id for box in boxes]
    await boxes[0].close()
    assert not _alive(machines[0])
    await backend.close()
    assert not _alive(machines[1])
    assert not [group for group in _groups(os.getpid()) if ".vm" in group]


def test_drafts_of_dead_makers_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "folder", lambda: tmp_path)
    child = subprocess.Popen(["true"])
    child.wait()
    (tmp_path / f"draft-{child.pid}-1").write_bytes(b"")
    (tmp_path / f"draft-{os.getpid()}-1").write_bytes(b"")
    templates.prune()
    assert os.listdir(tmp_path) == [f"draft-{os.getpid()}-1"]
