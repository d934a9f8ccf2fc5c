"""The weak tier: the same contract without namespaces, named as weak, and what it leaves open."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("sandlock", reason="the weak tier needs sandlock: pip install 'quintain[weak]'")

from quintain.errors import CapabilityError, ConfigError, IsolationError, SandboxError
from quintain.sandbox.weak import PREFIX, WeakBackend, sweep, unavailable, users_of
from quintain.task import SandboxSpec
from quintain.testing import check_sandbox

if unavailable():
    pytest.skip(unavailable(), allow_module_level=True)

WEAK = SandboxSpec(isolation="weak")


@pytest.fixture
async def weak():
    backend = WeakBackend(allow_weaker=True)
    yield backend
    await backend.close()


async def test_contract(weak):
    await check_sandbox(weak, WEAK)


async def test_it_is_never_chosen_silently():
    backend = WeakBackend(allow_weaker=True)
    with pytest.raises(IsolationError, match='isolation="weak"') as error:
        await backend.open(SandboxSpec())
    assert error.value.missing == ("namespaces",)
    with pytest.raises(IsolationError) as error:
        await WeakBackend().open(WEAK)
    assert error.value.missing == ("disk", "cpus")
    asked = {"image": "/", "packages": ("six",), "apt": ("jq",), "setup": ("true",)}
    for name, value in {**asked, "dockerfile": "FROM host\n"}.items():
        with pytest.raises(CapabilityError, match=f"cannot do this: {name}"):
            await backend.open(WEAK.model_copy(update={name: value}))
    with pytest.raises(ConfigError, match="/etc/x"):
        await backend.open(WEAK.model_copy(update={"workdir": "/etc/x"}))


async def test_probe_names_the_tier_and_what_it_lacks(weak):
    found = await weak.probe()
    assert found.available
    assert found.details["isolation"] == "weak"
    walls = {"files", "network", "processes", "seccomp", "namespaces", "pids", "memory", "time"}
    assert walls <= set(found.enforced), found.missing
    assert {"disk", "cpus"} <= set(found.missing)
    assert not [why for why in found.missing.values() if "got through" in why], found.missing


async def test_workdir_and_session(weak):
    box = await weak.open(SandboxSpec(isolation="weak", workdir="/srv/task"))
    try:
        assert (await box.exec(["pwd"])).text == "/srv/task\n"
        assert box.missing.keys() == {"disk", "cpus"}
        shell = await box.session()
        await shell.run("cd /tmp; name=lance")
        slow = await shell.run("sleep 60", timeout_s=0.5)
        run = await shell.run("pwd; echo $name")
        assert (slow.killed, run.text) == ("timeout", "/tmp\nlance\n")
        assert [entry.path for entry in await box.entries("/srv/task")] == []
    finally:
        await box.close()


FAST_OPEN = """
import socket, sys
with socket.socket() as s:
    s.settimeout(3)
    try:
        s.sendto(b"x", 0x20000000, ("127.0.0.1", int(sys.argv[1])))
    except BlockingIOError:
        pass
    print("sent")
"""


async def test_the_first_packet_of_a_fast_open_is_refused(weak):
    """Landlock alone lets it pass."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = ["-c", FAST_OPEN, str(server.getsockname()[1])]
        control = subprocess.run([sys.executable, *argv], capture_output=True, text=True)
        assert control.stdout == "sent\n", control
        box = await weak.open(WEAK)
        run = await box.exec(["python3", *argv])
        await box.close()
    assert "PermissionError" in run.error_text, run


async def test_a_folder_out_of_reach_is_told(weak, tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user reaches its own folders")
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SandboxError, match="cannot have"):
        await weak.open(WEAK)


async def test_what_it_leaves_open(weak):
    """Told in the documentation: should one of these hold some day, the page is to be changed."""
    box = await weak.open(SandboxSpec(isolation="weak", max_pids=20, disk_mb=1))
    try:
        run = await box.exec(["sh", "-c", "ls /; ls /dev"])
        assert {"boot", "vda"} & set(run.text.split()) or "loop0" in run.text, "names are visible"
        run = await box.exec(["sh", "-c", "for i in $(seq 300); do echo > n$i; done; ls | wc -l"])
        assert run.text == "300\n", "files without number"
        run = await box.exec(["sh", "-c", "head -c 900000 /dev/zero > a; cp a b; cp a c; du -k ."])
        assert run.ok, "the limit is of one file"
        run = await box.exec(["sh", "-c", "head -c 2000000 /dev/zero > big"])
        assert "File too large" in run.error_text
        code = "import socket; socket.socket().bind(('127.0.0.1', 0))"
        run = await box.exec(["python3", "-c", code])
        assert "PermissionError" in run.error_text, "nothing inside can listen"
    finally:
        await box.close()


def _system_v(users):
    found = set()
    for name, column in (("sem", 4), ("shm", 7), ("msg", 7)):
        for line in Path("/proc/sysvipc", name).read_text().splitlines()[1:]:
            row = line.split()
            if int(row[column]) in users:
                found.add((name, row[1]))
    return found


async def test_nothing_of_system_v_stays(weak):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandboxes share its own objects")
    users = users_of(os.getpid())
    boxes = [await weak.open(WEAK) for _ in range(2)]
    for box in boxes:
        assert (await box.exec(["true"])).ok
    assert _system_v(users), "sandlock keeps its accounts there"
    for box in boxes:
        await box.close()
    assert not _system_v(users)


OWNER = """
import asyncio, sys
from quintain.sandbox.weak import WeakBackend
from quintain.task import SandboxSpec

async def main():
    backend = WeakBackend(allow_weaker=True)
    boxes = [await backend.open(SandboxSpec(isolation="weak")) for _ in range(2)]
    script = "setsid sleep MARK & (while :; do sleep MARK; done) & touch up; sleep MARK"
    runs = [asyncio.create_task(box.exec(["sh", "-c", script], timeout_s=1000)) for box in boxes]
    for box in boxes:
        while not (await box.exec(["test", "-e", "up"])).ok:
            await asyncio.sleep(0.05)
    print(list(backend._servers.values())[0]._process.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def _alive(mark):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def _gone(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def open_folder():
    """A temporary folder that every user can reach, as `/tmp` is."""
    with tempfile.TemporaryDirectory(prefix="quintain-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_sigkill(open_folder, monkeypatch, victim):
    mark = str(3_000_000 + os.getpid())
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("MARK", mark)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(open_folder)},
    )
    try:
        keeper = int(owner.stdout.readline())
        inside = [pid for pid in _alive(mark) if pid != owner.pid]
        assert len(inside) >= 6
        if victim == "keeper":
            os.kill(keeper, signal.SIGKILL)
        else:
            owner.kill()
        assert _gone(lambda: [pid for pid in _alive(mark) if pid != owner.pid]), _alive(mark)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    monkeypatch.setattr("tempfile.tempdir", str(open_folder))
    if victim == "keeper":
        assert sweep()
    assert _gone(lambda: [name for name in os.listdir(open_folder) if name.startswith(PREFIX)])


FORBIDDEN = """
import asyncio, os
from quintain.errors import IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.weak import WeakBackend
from quintain.task import SandboxSpec
from quintain.testing import check_sandbox

async def main():
    try:
        await NativeBackend(allow_weaker=True).open(SandboxSpec())
    except IsolationError as error:
        assert error.missing == ("namespaces",), error.missing
        assert 'isolation="weak"' in str(error), error
        print("native refuses")
    backend = WeakBackend(allow_weaker=True)
    await check_sandbox(backend, SandboxSpec(isolation="weak"))
    found = await backend.probe()
    print(*found.missing, sep=" ")
    await backend.close()
    print("fine")

asyncio.run(main())
"""


def test_where_namespaces_are_forbidden(as_ordinary_user):
    """An ordinary user in a container that allows no namespace: no capability, none to be made."""
    shell = (
        "echo 0 > /proc/sys/user/max_user_namespaces && "
        'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
    )
    if not shutil.which("unshare"):
        pytest.skip("needs unshare, to make the setting")
    wrap = ["unshare", "--user", "--map-root-user", "--ipc", "sh", "-c", shell, "sh"]
    done = as_ordinary_user(FORBIDDEN, wrap=wrap)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "native refuses", done
    assert set(lines[1].split()) <= {"disk", "cpus", "capabilities"}, lines
    assert lines[-1] == "fine"
