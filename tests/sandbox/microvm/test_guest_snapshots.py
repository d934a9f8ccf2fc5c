"""Snapshots of guests: whole machines, which are values; listing and whole folders."""

from __future__ import annotations

import errno

import pytest

from quintain.errors import ConfigError
from quintain.task import SandboxSpec

pytestmark = [pytest.mark.microvm, pytest.mark.slow]


async def test_a_snapshot_outlives_its_sandbox_and_opens_others(backend):
    box = await backend.open(SandboxSpec())
    await box.exec(["sh", "-c", "mkdir -p d/e; echo one > d/e/f; ln -s f d/e/l; chmod 600 d/e/f"])
    shell = await box.session()
    await shell.run("sleep 900 & cd /tmp; V=1")
    taken = await box.snapshot()
    assert (await shell.run("pwd; echo $V")).text == "/tmp\n1\n", "the machine goes on"
    await box.exec(["sh", "-c", "echo two > d/e/f; rm d/e/l"])
    changed = await box.snapshot()
    assert changed.digest != taken.digest
    assert taken.size_bytes > 1 << 20
    await box.close()
    first, second = [await backend.open(SandboxSpec(), snapshot=taken) for _ in range(2)]
    run = await first.exec(["sh", "-c", "cat d/e/l; stat -c %a d/e/f; cat /proc/[0-9]*/comm"])
    assert run.text.startswith("one\n600\n"), run
    assert "sleep" not in run.text, "processes are no part of it"
    assert (await first.snapshot()).digest == taken.digest
    await first.write("d/e/f", "first")
    assert await second.read("d/e/f") == b"one\n", "nothing is shared"
    argv = ["sh", "-c", "head -c 16 /dev/urandom | od -An -tx1"]
    seen = {(await one.exec(argv)).text for one in (first, second)}
    assert len(seen) == 2
    with pytest.raises(ConfigError, match="of its own kind only"):
        await backend.open(SandboxSpec(memory_mb=100), snapshot=taken)
    taken.close()
    taken.close()
    with pytest.raises(ValueError, match="was closed"):
        await backend.open(SandboxSpec(), snapshot=taken)


async def test_a_restore_ends_sessions_and_goes_back(sandbox):
    await sandbox.write("kept", "1")
    shell = await sandbox.session()
    await shell.run("V=1")
    taken = await sandbox.snapshot()
    await sandbox.exec(["sh", "-c", "echo 2 > kept; echo new > new"])
    old = sandbox.process_id
    await sandbox.restore(taken)
    assert sandbox.process_id != old
    assert await sandbox.read("kept") == b"1"
    with pytest.raises(FileNotFoundError):
        await sandbox.read("new")
    assert (await shell.run("echo [$V]")).text == "[]\n", "a new shell"
    assert shell.restarts == 1


async def test_folders_are_listed_and_come_out_without_links(sandbox, tmp_path):
    made = "mkdir -p d/e; head -c 300000 /dev/urandom > d/e/big"
    script = f"{made}; ln -s /etc/passwd d/link; mkfifo d/p"
    await sandbox.exec(["sh", "-c", script])
    found = {entry.path: (entry.kind, entry.size) for entry in await sandbox.entries("d")}
    assert found == {
        "e": ("folder", 0), "e/big": ("file", 300_000), "link": ("link", 11), "p": ("other", 0)
    }  # fmt: skip
    with pytest.raises(FileNotFoundError):
        await sandbox.entries("no")
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the number says which
        await sandbox.entries("d", max_entries=2)
    assert refused.value.errno == errno.EFBIG
    with pytest.raises(PermissionError):
        await sandbox.entries("/root")
    done = await sandbox.download("d", tmp_path / "out")
    assert (done.files, done.size_bytes, done.skipped) == (1, 300_000, ("link", "p"))
    assert (tmp_path / "out/e/big").read_bytes() == await sandbox.read("d/e/big")
    with pytest.raises(OSError):  # noqa: PT011
        await sandbox.download("d", tmp_path / "less", max_bytes=1000)
    (tmp_path / "in/x").mkdir(parents=True)
    (tmp_path / "in/x/y").write_text("in")
    await sandbox.upload(tmp_path / "in", "up")
    assert await sandbox.read("up/x/y") == b"in"
    done = await sandbox.download("up/x/y", tmp_path / "one")
    assert ((tmp_path / "one").read_text(), done.files) == ("in", 1)
