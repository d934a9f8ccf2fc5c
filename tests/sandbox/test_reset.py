"""A reset sandbox is as new, and the survey that proves it sees whatever was left."""

from __future__ import annotations

import os

import pytest

from quintain.errors import CapabilityError, SandboxError
from quintain.task import NetworkPolicy, SandboxSpec

SPOIL = """
import ctypes, mmap, os, socket, subprocess, sys, time
for path in ("/tmp/a", "/work/b", "/dev/shm/c", "/home/sandbox/d"):
    open(path, "w").write("x")
os.mkdir("/tmp/folder", 0o777)
os.chmod("/work", 0o777)
ctypes.CDLL(None).shmget(0x51756E74, 4096, 0o1666)
ctypes.CDLL(None).semget(0x51756E74, 4, 0o1666)
server = socket.create_server(("127.0.0.1", 4321))
client = socket.create_connection(("127.0.0.1", 4321))
kept = socket.socket(socket.AF_UNIX)
kept.bind("\\0quintain-left")
kept.listen()
open("/work/ready", "w").close()
time.sleep(60)
"""


async def test_a_reset_brings_everything_back_and_closes_the_old_one(backend):
    box = await backend.open(SandboxSpec(env={"A": "1"}))
    fresh = await box.survey()
    await box.exec(["sh", "-c", "echo x > /tmp/x; ln -s /tmp/x /work/y; sleep 100 &"])
    assert [aspect for aspect, digest in (await box.survey()).items() if digest != fresh[aspect]]
    heir = await box.reset()
    try:
        assert await heir.survey() == fresh
        assert (await heir.exec(["sh", "-c", "ls -A /tmp /work; echo $A"])).text.split() == [
            "/tmp:", "/work:", "1"
        ]  # fmt: skip
        with pytest.raises(SandboxError, match="reset"):
            await box.exec(["true"])
        await box.close()
        assert (await heir.exec(["echo", "alive"])).text == "alive\n"
    finally:
        await heir.close()


async def test_the_survey_sees_each_kind_of_trace(backend):
    box = await backend.open(SandboxSpec())
    fresh = await box.survey()
    session = await box.session()
    await box.write("/work/spoil.py", SPOIL)
    await session.run("python3 /work/spoil.py &")
    for _ in range(200):
        if "ready" in [entry.path for entry in await box.entries("/work")]:
            break
        await session.run("sleep 0.05")
    spoilt = await box.survey()
    differing = {aspect for aspect in fresh if spoilt[aspect] != fresh[aspect]}
    assert {"tree", "processes", "ipc", "network"} <= differing
    if box.groups:
        assert "groups" in differing
    await session.close()
    heir = await box.reset()
    after = await heir.survey()
    left = {aspect for aspect in fresh if after[aspect] != fresh[aspect]}
    # Loopback was used: the kept network namespace remembers it, and the proof says so.
    assert left == {"network"}
    await heir.close()


async def test_two_fresh_sandboxes_agree_but_for_their_owners(backend):
    one, other = [await backend.open(SandboxSpec()) for _ in range(2)]
    first, second = await one.survey(), await other.survey()
    for aspect in ("processes", "ipc", "environment", "network", "groups"):
        assert first[aspect] == second[aspect], aspect
    await one.close()
    await other.close()


async def test_limits_hold_after_a_reset(backend):
    box = await (await backend.open(SandboxSpec(memory_mb=64, max_pids=16, disk_mb=16))).reset()
    assert (await box.exec(["python3", "-c", "bytearray(300 << 20)"])).killed == "memory"
    forks = "import os,time\nfor _ in range(40): os.fork() or time.sleep(5)"
    assert (await box.exec(["python3", "-c", forks])).killed == "pids"
    full = await box.exec(["sh", "-c", "head -c 30000000 /dev/zero > /work/big"])
    assert not full.ok
    heir = await box.reset()
    assert (await heir.exec(["echo", "on"])).text == "on\n"
    await heir.close()


async def test_many_resets_in_one_place(backend):
    box = await backend.open(SandboxSpec())
    fresh = await box.survey()
    descriptors = len(os.listdir("/proc/self/fd"))
    for turn in range(10):
        await box.write("/tmp/turn", str(turn))
        box = await box.reset()
        assert await box.survey() == fresh
    assert len(os.listdir("/proc/self/fd")) == descriptors
    await box.close()


async def test_a_broken_sandbox_cannot_be_reset(backend):
    box = await backend.open(SandboxSpec())
    await box.close()
    with pytest.raises(SandboxError):
        await box.reset()


async def test_a_sandbox_with_a_network_is_not_reset(backend):
    box = await backend.open(SandboxSpec())
    box.spec = SandboxSpec(network=NetworkPolicy(mode="open"))
    with pytest.raises(CapabilityError, match="network"):
        await box.reset()
    await box.close()


async def test_an_image_is_reset_too(backend, tmp_path):
    for folder in ("etc", "proc", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "etc/kept").write_text("of the image")
    (tmp_path / "program").touch(mode=0o755)
    box = await backend.open(SandboxSpec(image=str(tmp_path)))
    fresh = await box.survey()
    await box.write("/tmp/new", "x")
    assert (await box.survey())["tree"] != fresh["tree"]
    heir = await box.reset()
    assert await heir.survey() == fresh
    assert await heir.read("/etc/kept") == b"of the image"
    await heir.close()
