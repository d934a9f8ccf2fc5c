"""Attack: what no sandbox may have is smuggled into one through a snapshot, or leaks by a fork."""

from __future__ import annotations

import os
import secrets
import stat

import pytest

from quintain.sandbox import snapshot
from quintain.sandbox.layout import Ids
from quintain.task import SandboxSpec

IDS = Ids(False, 1_000_001, 1_000_002, 1_000_002, 1000, 1000)


def copy(source, target, ids=IDS):
    """Takes a snapshot of a folder of the host as a layer, and fills another with it."""
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target)]
    try:
        with snapshot.take(fds[0], SandboxSpec(), ids, overlay=False) as taken:
            taken.fill(fds[1], ids)
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.usefixtures("as_root")
def test_set_uid_and_devices_stay_behind(tmp_path):
    layer, other = tmp_path / "layer", tmp_path / "other"
    layer.mkdir()
    other.mkdir()
    (layer / "su").write_text("#!/bin/sh\n")
    os.chown(layer / "su", 0, 0)
    (layer / "su").chmod(0o6755)
    os.mknod(layer / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(layer / "zero", stat.S_IFCHR | 0o666, os.makedev(0, 0))
    (layer / "shared").mkdir()
    (layer / "shared").chmod(0o2775)
    assert (layer / "su").stat().st_mode & 0o6000, "the control: a plain copy would have them"
    copy(layer, other)
    assert stat.S_IMODE((other / "su").stat().st_mode) == 0o755
    assert not (other / "null").exists()
    assert not (other / "zero").exists()
    assert stat.S_IMODE((other / "shared").stat().st_mode) == 0o2775


def test_links_lead_nowhere(tmp_path):
    """Neither the reader nor the writer follows a link, not even a planted one."""
    layer, other, outside = (tmp_path / name for name in ("layer", "other", "outside"))
    for folder in (layer, other, outside):
        folder.mkdir()
    (outside / "secret").write_text("host secret")
    (layer / "out").symlink_to(outside)
    (layer / "file").symlink_to(outside / "secret")
    (layer / "deep").mkdir()
    (layer / "deep" / "planted").write_text("x")
    # The fresh layer has links where the snapshot has a folder and a file.
    (other / "deep").symlink_to(outside)
    uid = os.geteuid()
    copy(layer, other, Ids(True, uid, uid, uid, 1000, 1000))
    assert os.readlink(other / "out") == str(outside), "a link is kept as a link"
    assert os.readlink(other / "file") == str(outside / "secret")
    assert not (other / "deep").is_symlink()
    assert not (outside / "planted").exists()
    assert (outside / "secret").read_text() == "host secret"


async def test_forks_share_nothing(open_sandbox, any_launcher):
    sandbox = await open_sandbox()
    token = secrets.token_hex(16)
    shell = await sandbox.session()
    await shell.run(f"V={token}; export V; echo {token} > /dev/shm/x; sleep 100 &")
    await sandbox.write("seen", "both")
    one, two = await sandbox.fork(), await sandbox.fork()
    try:
        assert await one.read("seen") == b"both"
        look = f"grep -rsl {token} /proc/[0-9]*/environ /dev/shm /tmp /work /run; ls /proc | wc -l"
        for fork in (one, two):
            run = await fork.exec(
                ["sh", "-c", look.replace(token, token[:16] + "['']*" + token[16:])]
            )
            assert token not in run.text
            assert "/dev/shm" not in run.text, "memory shared by processes is not part of it"
            run = await fork.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c '^sleep'"])
            assert run.text.strip() == "0", "processes are not part of it"
        await one.write("own", token)
        await one.exec(["sh", "-c", "echo changed > seen; mkfifo pipe; (cat > pipe &)"])
        for other in (two, sandbox):
            assert await other.read("seen") == b"both"
            with pytest.raises(FileNotFoundError):
                await other.read("own")
    finally:
        await one.close()
        await two.close()


async def test_a_restored_sandbox_has_no_rights_more(open_sandbox, any_launcher):
    sandbox = await open_sandbox()
    await sandbox.exec(["sh", "-c", "cp /usr/bin/id myid; chmod 4755 myid; mknod n c 0 0"])
    taken = await sandbox.snapshot()
    await sandbox.restore(taken)
    run = await sandbox.exec(["sh", "-c", "stat -c %a myid; ./myid -u; cat /proc/self/status"])
    assert run.text.splitlines()[:2] == ["755", "1000"]
    for line in run.text.splitlines():
        if line.startswith("Cap"):
            assert int(line.split()[1], 16) == 0, line
    run = await sandbox.exec(["sh", "-c", "ls n; mknod m c 1 3; echo x > /etc/x; ls /stage /host"])
    assert run.stdout == b""
