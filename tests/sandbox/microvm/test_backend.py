"""Real guests: the contract, limits, walls, freshness, snapshots."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from docs.pages import ROOT, blocks
from quintain.errors import SandboxError
from quintain.sandbox.microvm.accelerator import find
from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.task import SandboxSpec
from quintain.testing import check_sandbox

pytestmark = [pytest.mark.microvm, pytest.mark.slow]


async def test_contract(backend):
    await check_sandbox(backend)


async def test_probe(backend):
    """Every attack that the probe carries is contained, and it says how guests run."""
    found = await backend.probe()
    assert found.available
    assert found.missing == {}, found.missing
    walls = {"files", "network", "processes", "seccomp", "namespaces", "capabilities"}
    limits = {"pids", "memory", "disk", "time", "output", "cpus"}
    assert walls | limits <= set(found.enforced)
    assert found.details["accelerator"] in ("kvm", "tcg")
    assert (found.details["accelerator"] == "kvm") or found.details["why_not_kvm"]


async def test_a_fork_bomb_ends_and_the_sandbox_lives(sandbox):
    bomb = "import os, time\nwhile True:\n    os.fork()"
    run = await sandbox.exec(["python3", "-c", bomb], timeout_s=6)
    assert run.killed in ("pids", "timeout"), run
    run = await sandbox.exec(["echo", "alive"], timeout_s=200)
    assert run.text == "alive\n", run


async def test_a_kernel_of_its_own_and_no_way_out(sandbox):
    run = await sandbox.exec(["sh", "-c", "uname -r; ls /sys /proc/sys/net 2>&1 | head -3"])
    assert run.text.splitlines()[0] != os.uname().release
    run = await sandbox.exec(["cat", "/proc/net/dev"])
    names = [line.split(":")[0].strip() for line in run.text.splitlines() if ":" in line]
    assert names == ["lo"], run
    run = await sandbox.exec(["sh", "-c", "ls /dev; ls /groups /layers /covers /modules 2>&1"])
    assert "vport" not in run.text, run
    assert "vda" not in run.text, run
    assert run.text.count("No such file") == 4, run


async def test_guests_of_one_template_share_nothing_random(backend):
    first, second = await asyncio.gather(backend.open(SandboxSpec()), backend.open(SandboxSpec()))
    argv = ["sh", "-c", "head -c 16 /dev/urandom | od -An -tx1; date +%s"]
    seen = [(await box.exec(argv)).text.splitlines() for box in (first, second)]
    assert seen[0][0] != seen[1][0], seen
    for _, seconds in seen:
        assert abs(int(seconds) - time.time()) < 300, "the clock is the host's"


def _status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def test_the_machine_itself_is_jailed(sandbox):
    pid = sandbox.process_id
    state = _status(pid)
    assert state["Name"].startswith("qemu")
    assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(state[name], 16) == 0, name
    for space in ("mnt", "net", "ipc", "uts"):
        own = os.readlink(f"/proc/{pid}/ns/{space}")
        assert own != os.readlink(f"/proc/self/ns/{space}"), space
    if os.geteuid() == 0:
        assert int(state["Uid"].split()[0]) >= 0x68000000, state["Uid"]
        root = set(os.listdir(f"/proc/{pid}/root"))
        assert not root & {"home", "etc/passwd", "proc", "sys", "var", "tmp", "boot"}, root
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    assert children == "", "it starts nothing"


async def test_an_image_is_the_root(backend, tmp_path):
    image = tmp_path / "image"
    for folder in ("bin", "lib64", "data"):
        (image / folder).mkdir(parents=True)
    shell = shutil.which("dash") or shutil.which("sh")
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    shutil.copy(shell, image / "bin" / "sh")
    for word in listed.split():
        if word.startswith("/"):
            (image / word.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, image / word.lstrip("/"))
    (image / "data" / "greeting").write_text("hello\n")
    spec = SandboxSpec(image=str(image), memory_mb=128, disk_mb=32)
    box = await backend.open(spec)
    script = "read line < /data/greeting; echo $line; echo mine > /data/greeting; echo /*"
    run = await box.exec(["sh", "-c", script], timeout_s=100)
    assert run.text.startswith("hello\n"), run
    assert "/usr" not in run.text.split(), run
    assert "Permission denied" in run.error_text, "the image belongs to root"
    await box.write("/data/greeting", "changed\n")
    assert await box.read("/data/greeting") == b"changed\n"
    assert (image / "data" / "greeting").read_text() == "hello\n"
    other = await backend.open(spec)
    assert await other.read("/data/greeting") == b"hello\n"


async def test_without_templates_each_guest_boots(tmp_path):
    backend = MicrovmBackend(templates=False)
    try:
        box = await backend.open(SandboxSpec(memory_mb=128, disk_mb=32))
        assert (await box.exec(["echo", "booted"], timeout_s=200)).text == "booted\n"
    finally:
        await backend.close()


async def test_kvm_is_believed_only_when_a_guest_boots(backend, tmp_path, monkeypatch):
    """The answer is kept for this boot of the host, and is found anew for another."""
    await backend.open(SandboxSpec())
    hardware = (await backend._prepare(SandboxSpec())).hardware
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jail = backend._jail(1)
    first = await find(hardware.kernel, hardware.initial_disk, jail)
    kept = tmp_path / "quintain" / "microvm" / "accelerator.json"
    assert first.accelerator in kept.read_text()
    if first.accelerator == "tcg":
        assert first.why
    fields = json.loads(kept.read_text())
    kept.write_text(json.dumps({**fields, "why": "kept"}))
    again = await find(hardware.kernel, hardware.initial_disk, jail)
    assert again.why == "kept"
    kept.write_text(json.dumps({**fields, "identity": "another boot", "why": "kept"}))
    again = await find(hardware.kernel, hardware.initial_disk, jail)
    assert (again.accelerator, again.machine) == (first.accelerator, first.machine)
    assert again.why != "kept"


async def test_a_dead_machine_is_the_hosts_fault(backend):
    box = await backend.open(SandboxSpec())
    running = asyncio.create_task(box.exec(["sleep", "100"]))
    await asyncio.sleep(0.5)
    os.kill(box.process_id, 9)
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await box.exec(["true"])
    other = await backend.open(SandboxSpec())
    assert (await other.exec(["echo", "again"], timeout_s=200)).text == "again\n"


async def test_a_fork_holds_the_files_and_no_process(sandbox):
    script = "echo kept > file; setsid sleep 1000 & sleep 100"
    busy = asyncio.create_task(sandbox.exec(["sh", "-c", script], timeout_s=8))
    while (await sandbox.exec(["test", "-s", "file"], timeout_s=200)).exit_code:
        await asyncio.sleep(0.1)
    other = await sandbox.fork()
    assert await other.read("file") == b"kept\n"
    run = await other.exec(["sh", "-c", "cat /proc/[0-9]*/comm"], timeout_s=200)
    assert "sleep" not in run.text, run
    await other.write("file", "changed\n")
    assert await sandbox.read("file") == b"kept\n"
    argv = ["sh", "-c", "head -c 16 /dev/urandom | od -An -tx1"]
    first, second = [(await box.exec(argv, timeout_s=200)).text for box in (sandbox, other)]
    assert first != second
    assert (await busy).killed == "timeout", "the one that was forked went on"
    assert (await (await other.fork()).read("file")) == b"changed\n"


async def test_long_output_keeps_its_end(sandbox):
    script = "head -c 5000000 /dev/zero | tr '\\0' a; echo end; echo oops >&2"
    run = await sandbox.exec(["sh", "-c", script], timeout_s=200)
    assert len(run.stdout) == sandbox.spec.max_output_bytes
    assert run.truncated
    assert run.stdout.startswith(b"aaaa")
    assert run.stdout.endswith(b"aend\n")
    assert run.stderr == b"oops\n"


def test_the_example_of_the_page_runs():
    (block,) = [
        block for block in blocks(ROOT / "docs" / "microvm.md") if block.language == "python"
    ]
    run = subprocess.run(
        [sys.executable, "-c", block.text], capture_output=True, text=True, timeout=500
    )
    assert run.stdout.strip(), run.stderr
    assert run.stdout.strip() != os.uname().release
