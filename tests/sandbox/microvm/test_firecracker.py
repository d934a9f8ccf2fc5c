"""The Firecracker driver against a stub that knows the published API (no real one runs here)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from quintain.errors import IsolationError, SandboxError
from quintain.sandbox.microvm.firecracker import backend as module
from quintain.sandbox.microvm.firecracker import jailer
from quintain.sandbox.microvm.firecracker.api import Api
from quintain.sandbox.microvm.firecracker.backend import FirecrackerBackend
from quintain.sandbox.microvm.firecracker.machine import Hardware
from quintain.task import SandboxSpec

STUB = Path(__file__).with_name("firecracker_stub.py")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A jailer and a firecracker on the PATH: the stub; temporary files in a folder of the test."""
    (tmp_path / "bin").mkdir()
    short = tempfile.TemporaryDirectory(prefix="q")  # the paths of sockets are
    (tmp_path / "t").symlink_to(short.name)
    monkeypatch.setattr(tempfile, "tempdir", short.name)
    for name in ("jailer", "firecracker"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    yield tmp_path
    short.cleanup()


@pytest.fixture
async def backend(installed, monkeypatch):
    """Its guest: files of a few bytes, and no step at all."""
    for name in ("vmlinux", "initrd", "disk"):
        (installed / name).write_text(name)
    hardware = Hardware(installed / "vmlinux", installed / "initrd", (installed / "disk",), 640, 2)
    monkeypatch.setattr(FirecrackerBackend, "_prepare", lambda *_: (hardware, []))
    made = FirecrackerBackend()
    yield made
    await made.close()


def _requests(sandbox):
    return json.loads((sandbox.machine.cell.root / "requests").read_text())


async def test_a_sandbox_is_configured_booted_used_and_removed(backend, installed):
    box = await backend.open(SandboxSpec())
    asked = [(one["method"], one["path"]) for one in _requests(box)]
    assert asked == [
        ("PUT", "/machine-config"),
        ("PUT", "/boot-source"),
        ("PUT", "/drives/disk0"),
        ("PUT", "/vsock"),
        ("PUT", "/entropy"),
        ("PUT", "/actions"),
    ]
    bodies = {one["path"]: one["body"] for one in _requests(box)}
    assert bodies["/machine-config"] == {"vcpu_count": 2, "mem_size_mib": 640, "smt": False}
    assert bodies["/drives/disk0"]["is_read_only"] is True
    assert "quintain.vsock=1024" in bodies["/boot-source"]["boot_args"]
    run = await box.exec(["sh", "-c", "exit 3"])
    assert (run.exit_code, run.text) == (3, box.machine.cell.name)
    await box.write("file", b"x" * 100_000)
    await box.close()
    assert os.listdir(installed / "t") == []
    with pytest.raises(SandboxError):
        await box.exec(["true"])


@needs_root
async def test_a_fork_is_saved_and_loaded(backend):
    box = await backend.open(SandboxSpec())
    other = await box.fork()
    asked = [(one["path"], one["body"].get("state", "")) for one in _requests(box)][-3:]
    assert asked == [("/vm", "Paused"), ("/snapshot/create", ""), ("/vm", "Resumed")]
    (loaded,) = _requests(other)
    assert loaded["path"] == "/snapshot/load"
    assert loaded["body"] == {
        "snapshot_path": "/state",
        "mem_backend": {"backend_type": "File", "backend_path": "/memory"},
        "resume_vm": True,
    }
    again = await box.fork()
    assert (other.machine.cell.root / "memory").stat().st_ino != (
        again.machine.cell.root / "memory"
    ).stat().st_ino
    first, second = await asyncio.gather(box.exec(["true"]), other.exec(["true"]))
    assert first.text != second.text


async def test_what_the_api_refuses_is_told(backend):
    box = await backend.open(SandboxSpec())
    api = box.machine.api
    with pytest.raises(SandboxError, match="not supported after starting"):
        await api.machine(processors=1, memory_mb=128)
    with pytest.raises(SandboxError, match="not paused"):
        await api.save(state="/state", memory="/memory")
    assert await api.state() == "Running"
    assert await api.version() == "0.0.0-stub"


async def test_a_jailer_that_fails_says_why(backend, installed):
    (installed / "bin" / "jailer").write_text("#!/bin/sh\necho no such cgroup >&2; exit 1\n")
    with pytest.raises(SandboxError, match="no such cgroup"):
        await backend.open(SandboxSpec())
    assert os.listdir(installed / "t") == []


async def test_nobody_at_the_socket(tmp_path):
    api = Api(str(tmp_path / "nothing"))
    with pytest.raises(SandboxError, match="did not answer GET /version"):
        await api.version()
    await api.close()


def test_the_jailers_arguments(tmp_path):
    cell = jailer.Cell(tmp_path, "/usr/bin/firecracker", "q-1-2")
    limits = jailer.limits(2, 100, 125_000, 100_000, 64)
    argv = cell.arguments("/usr/bin/jailer", 7, limits, 2)
    assert argv[:9] == ["/usr/bin/jailer", "--id", "q-1-2", "--exec-file", "/usr/bin/firecracker",
                        "--uid", "7", "--gid", "7"]  # fmt: skip
    assert argv[-3:] == ["--", "--api-sock", "/run/firecracker.socket"]
    assert argv[argv.index("--cgroup-version") + 1] == "2"
    assert "cpu.max=125000 100000" in argv
    assert f"memory.max={100 << 20}" in argv
    assert cell.root == tmp_path / "firecracker" / "q-1-2" / "root"
    with pytest.raises(ValueError, match="letters, digits"):
        jailer.Cell(tmp_path, "firecracker", "a/../b").arguments("jailer", 7, (), 0)


def test_what_a_dead_owner_left_is_swept(installed):
    owner = subprocess.Popen(["sleep", "100"])
    left = subprocess.Popen(["sleep", "100"])
    try:
        start = jailer.cgroups.start_time
        space = jailer.cgroups.owner_name().partition(".")[2]
        name = f"quintain-fc-{owner.pid}-{start(owner.pid)}.{space}.x"
        base = Path(tempfile.gettempdir()) / name
        base.mkdir()
        (base / "process").write_text(f"{left.pid} {start(left.pid)}")
        assert jailer.sweep() == [], "its owner lives"
        owner.kill()
        owner.wait()
        assert jailer.sweep() == [str(base)]
        assert left.wait(10) == -9
        assert os.listdir(installed / "t") == []
    finally:
        for process in (owner, left):
            process.kill()
            process.wait()


async def test_the_probe_says_that_nothing_is_verified(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await FirecrackerBackend().probe()
    assert not found.available
    assert found.advice.startswith("unverified on this host: no binary")
    assert found.missing["verified"] == module.UNVERIFIED
    with pytest.raises(IsolationError, match="no binary"):
        await FirecrackerBackend().open(SandboxSpec())
