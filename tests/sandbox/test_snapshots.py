"""Snapshots, restores and forks: everything written comes back, nothing else does."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from quintain.errors import ConfigError, SandboxError
from quintain.task import SandboxSpec

MAKE = r"""
import os, socket
os.makedirs("d/e"); os.chmod("d/e", 0o2711); os.makedirs("empty", 0o700)
with open("d/f", "wb") as file: file.write(bytes(range(256)) * 40)
os.chmod("d/f", 0o640); os.utime("d/f", ns=(10**18, 10**18 + 5))
os.link("d/f", "hard"); os.symlink("d/f", "soft"); os.symlink("/nowhere", "d/dangling")
os.mkfifo("pipe", 0o622); socket.socket(socket.AF_UNIX).bind("sock")
with open("sparse", "wb") as file:
    file.seek(10_000_000); file.write(b"end"); file.truncate(15_000_000)
os.setxattr("d/f", "user.note", b"kept")
open(b"odd \xff\n name", "w").close()
with open("closed", "w") as file: file.write("x")
os.chmod("closed", 0); os.makedirs("shut/in"); open("shut/in/x", "w").close()
os.chmod("shut", 0)
open("/tmp/t", "w").write("tmp"); open("/var/tmp/v", "w").close()
open("/dev/shm/gone", "w").close()
"""
TELL = r"""
import hashlib, os, stat
for top in ("/work", "/tmp", "/var/tmp", "/home", "/dev/shm"):
    for folder, names, leaves in os.walk(os.fsencode(top)):
        names.sort()
        for name in sorted([*names, *leaves]):
            path = os.path.join(folder, name)
            s = os.lstat(path)
            kind = stat.filemode(s.st_mode), s.st_uid, s.st_gid, s.st_nlink
            size = s.st_size if stat.S_ISREG(s.st_mode) else 0
            data = note = ""
            if stat.S_ISREG(s.st_mode) and os.access(path, os.R_OK):
                data = hashlib.md5(open(path, "rb").read()).hexdigest()
                note = os.listxattr(path), s.st_blocks < 1000
            if stat.S_ISLNK(s.st_mode): data = os.readlink(path)
            print(path, *kind, size, s.st_mtime_ns, data, note)
"""


async def told(box):
    run = await box.exec(["python3", "-c", TELL])
    assert run.ok, run
    return run.text.splitlines()


async def test_everything_comes_back(backend):
    box = await backend.open(SandboxSpec())
    run = await box.exec(["python3", "-c", MAKE])
    assert run.ok, run
    before = [line for line in await told(box) if "/dev/shm" not in line]
    snapshot = await box.snapshot()
    assert await told(box) != before, "the sandbox itself is as it was, /dev/shm with it"
    await box.close()
    assert snapshot.size_bytes < 1_000_000, "holes take no room"
    twice = [await backend.open(snapshot.spec, snapshot=snapshot) for _ in range(2)]
    for other in twice:
        assert await told(other) == before
        again = await other.snapshot()
        assert again.digest == snapshot.digest
        again.close()
    run = await twice[0].exec(["sh", "-c", "echo more >> d/f; chmod 700 shut; rm -r shut; touch n"])
    assert run.ok, run
    assert await told(twice[1]) == before, "forks share nothing"
    changed = await twice[0].snapshot()
    assert changed.digest != snapshot.digest
    snapshot.close()
    with pytest.raises(ValueError, match="closed"):
        _ = snapshot.size_bytes


async def test_what_was_removed_stays_removed(backend):
    box = await backend.open(SandboxSpec(user="root"))
    run = await box.exec(["sh", "-c", "rm -r /home /srv; mkdir /srv; echo x > /srv/x; mkdir /new"])
    assert run.ok or "Permission" in run.error_text, run
    state = (await box.exec(["sh", "-c", "ls -a / /srv /home 2>&1"])).text
    fork = await box.fork()
    assert (await fork.exec(["sh", "-c", "ls -a / /srv /home 2>&1"])).text == state
    run = await fork.exec(
        ["sh", "-c", "cat /etc/hostname /proc/self/comm; ls /dev/null /usr/bin/env"]
    )
    assert run.ok, "what is mounted is there"


async def test_restore_goes_back_and_ends_everything(box):
    await box.write("kept", "old")
    shell, python = await box.session(), await box.python()
    await python.run("x = 1")
    snapshot = await box.snapshot()
    await shell.run("echo new > kept; echo more > added; sleep 300 & V=1")
    await box.restore(snapshot)
    assert await box.read("kept") == b"old"
    with pytest.raises(FileNotFoundError):
        await box.read("added")
    run = await shell.run("echo [$V]; ls; cat /proc/[0-9]*/comm | grep -c '^sleep'")
    assert run.text == "[]\nkept\n0\n"
    assert "NameError" in (await python.run("x")).error
    assert (shell.restarts, python.restarts) == (1, 1)
    await box.write("kept", "newer")
    await box.restore(snapshot)
    assert await box.read("kept") == b"old", "a snapshot serves more than once"


async def test_processes_stand_still_and_go_on(box):
    shell = await box.session()
    code = "import time\nn = 0\nwhile True:\n  n += 1; open('/tmp/a', 'w').write(str(n)); "
    code += "open('/tmp/b', 'w').write(str(n)); time.sleep(0)"
    await box.write("count.py", code)
    await shell.run("python3 count.py & sleep 300 & kill -STOP $!; sleep 0.3")
    for _ in range(3):
        with await box.snapshot() as snapshot:
            other = await box._backend.open(snapshot.spec, snapshot=snapshot)
            pair = [await other.read(f"/tmp/{name}") for name in "ab"]
            await other.close()
        a, b = (int(part or -1) for part in pair)
        assert -1 in (a, b) or a - b in (0, 1), "nothing moved while the layer was copied"
    first = await box.read("/tmp/a")
    await asyncio.sleep(0.3)
    assert await box.read("/tmp/a") != first, "it goes on"
    run = await box.exec(["sh", "-c", "grep -h State /proc/[0-9]*/status | sort | uniq -c"])
    assert "T (stopped)" in run.text, "what was stopped before stays so"


async def test_commands_wait_for_a_snapshot(box):
    await box.write("big", os.urandom(8_000_000))
    taking = asyncio.create_task(box.snapshot())
    runs = await asyncio.gather(*(box.exec(["true"]) for _ in range(5)), box.write("x", "1"))
    assert all(run is None or run.ok for run in runs)
    with await taking as snapshot:
        assert snapshot.size_bytes >= 8_000_000


async def test_what_does_not_fit_is_told(backend):
    box = await backend.open(SandboxSpec(disk_mb=16))
    await box.write("big", os.urandom(8_000_000))
    with await box.snapshot() as snapshot:
        with pytest.raises(SandboxError, match="disk_mb"):
            await backend.open(SandboxSpec(disk_mb=4), snapshot=snapshot)
        wider = await backend.open(SandboxSpec(disk_mb=32, memory_mb=64), snapshot=snapshot)
        assert len(await wider.read("big")) == 8_000_000
        with pytest.raises(ConfigError, match="base"):
            await backend.open(SandboxSpec(image="/usr"), snapshot=snapshot)


async def test_a_tree_too_deep_is_the_candidates_fault(box):
    code = "import os\nfor _ in range(300): os.mkdir('d'); os.chdir('d')"
    assert (await box.exec(["python3", "-c", code])).ok
    with pytest.raises(OSError, match="deeper"):
        await box.snapshot()
    assert (await box.exec(["true"])).ok


async def test_nothing_is_left(backend):
    box = await backend.open(SandboxSpec())
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        fork = await box.fork()
        await fork.close()
        snapshot = await box.snapshot()
        await box.restore(snapshot)
        del snapshot
    assert len(os.listdir("/proc/self/fd")) <= fds


@pytest.fixture
def image(tmp_path):
    """A small root file system with a folder that anyone may change."""
    root = Path(tmp_path, "image")
    for name in ("sh", "cat", "ls", "rm", "mkdir", "find", "chmod"):
        program = shutil.which(name)
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for file in [program, *(word for word in told.split() if word.startswith("/"))]:
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(file), target)
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy(root / shutil.which("sh").lstrip("/"), root / "bin" / "sh")
    for name in ("data/gone", "data/kept", "data/folder/inner", "data/changed"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of the image\n")
        path.chmod(0o666)
        path.parent.chmod(0o777)
    return root


LIST = "find /data /work /tmp | while read f; do ls -ld $f | cat; test -d $f || cat $f; done"


async def test_an_images_layer_comes_back(backend, image):
    box = await backend.open(SandboxSpec(image=str(image)))
    script = "cd /data; rm gone; echo mine > changed; rm -r folder; mkdir folder; "
    script += "echo new > folder/new; chmod 700 folder; echo w > /work/w"
    run = await box.exec(["sh", "-c", script])
    assert run.ok, run
    before = (await box.exec(["sh", "-c", LIST])).text
    assert "gone" not in before
    assert "inner" not in before
    fork = await box.fork()
    after = (await fork.exec(["sh", "-c", LIST])).text
    names = [line for line in after.splitlines() if line[:1] not in "d-"]
    assert names == [line for line in before.splitlines() if line[:1] not in "d-"]
    modes = [line.split()[0] + line.split()[-1] for line in before.splitlines() if line[0] in "d-"]
    assert modes == [
        line.split()[0] + line.split()[-1] for line in after.splitlines() if line[0] in "d-"
    ]
    one, two = await box.snapshot(), await fork.snapshot()
    assert one.digest == two.digest
    again = await (await fork.fork()).exec(["sh", "-c", LIST])
    assert again.text == after
    assert (image / "data" / "gone").exists()
    with pytest.raises(ConfigError, match="base"):
        await backend.open(SandboxSpec(), snapshot=one)
    await fork.restore(one)
    assert (await fork.exec(["sh", "-c", LIST])).text == after


VFORK = """
import ctypes, time
vfork_and_sigchld = ctypes.c_long(0x4000 | 17)
call = {"x86_64": 56, "aarch64": 220}[__import__("platform").machine()]
print("here", flush=True)
ctypes.CDLL(None).syscall(ctypes.c_long(call), vfork_and_sigchld, 0, 0, 0, 0)
while True:
    open("alive", "a").write("x")
    time.sleep(0.05)
"""
"""Its parent waits in the kernel until it ends, and cannot be stopped meanwhile."""


async def test_a_parent_that_waits_in_vfork_stands_still(backend):
    box = await backend.open(SandboxSpec())
    running = asyncio.create_task(box.exec(["python3", "-c", VFORK], timeout_s=60))
    while not (await box.exec(["test", "-s", "alive"])).ok:
        await asyncio.sleep(0.02)
    taken = await box.snapshot()
    size = len(await box.read("alive"))
    while len(await box.read("alive")) == size:
        await asyncio.sleep(0.02)
    again = await backend.open(taken.spec, snapshot=taken)
    assert len(await again.read("alive")) <= size
    await box.close()
    await asyncio.gather(running, return_exceptions=True)
