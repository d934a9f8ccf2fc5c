"""The native backend beyond the contract: what programs inside need, and what a spec asks for."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time

import pytest

from quintain.errors import CapabilityError, ConfigError, IsolationError, SandboxError
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


async def test_python_is_the_version_outside(box):
    run = await box.exec(["python3", "-c", "import sys; print(*sys.version_info[:2])"])
    assert run.text.split() == [str(sys.version_info[0]), str(sys.version_info[1])], run


async def test_programs_inside_have_what_they_need(box):
    code = """
import asyncio, concurrent.futures, multiprocessing, os, socket, tempfile, threading
def double(x): return 2 * x
async def main():
    process = await asyncio.create_subprocess_exec("echo", "a", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]
if __name__ == "__main__":
    print(asyncio.run(main()))
    with multiprocessing.Pool(2) as pool:
        print(pool.map(double, [1, 2]))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(sum(pool.map(double, range(10))))
    lock = multiprocessing.Lock()
    with lock, tempfile.NamedTemporaryFile() as file:
        print(os.path.dirname(file.name))
    a, b = socket.socketpair()
    a.send(b"x"); print(b.recv(1))
    print(socket.gethostbyname("localhost"), socket.gethostname(), os.path.expanduser("~"))
    master, slave = os.openpty()
    print(os.ttyname(slave).startswith("/dev/pts/"), os.access("/dev/null", os.W_OK))
"""
    await box.write("main.py", code)
    run = await box.exec(["python3", "main.py"])
    assert run.text.splitlines() == [
        "b'a\\n'",
        "[2, 4]",
        "90",
        "/tmp",
        "b'x'",
        "127.0.0.1 sandbox /home/sandbox",
        "True True",
    ], run


async def test_every_process_is_without_rights(box):
    run = await box.exec(["cat", "/proc/self/status"])
    state = dict(line.split(":\t") for line in run.text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(state[name], 16) == 0, name
    assert state["NoNewPrivs"] == "1"
    assert state["Seccomp"] == "2"
    assert state["Uid"].split() == ["1000"] * 4
    assert state["Groups"].strip() == ""


async def test_long_arguments_and_odd_names(box):
    long = "x" * 100_000
    run = await box.exec(["printf", "%s", long], env={"B": long})
    assert run.text == long
    await box.write("ä \n$(x)/ü", "ok")
    assert await box.read("ä \n$(x)/ü") == b"ok"
    with pytest.raises(ValueError, match="NUL"):
        await box.exec(["a\0b"])
    with pytest.raises(ValueError, match="argv is empty"):
        await box.exec([])


async def test_a_missing_folder_is_a_result(box):
    run = await box.exec(["true"], cwd="nowhere")
    assert run.exit_code == 126
    assert "nowhere" in run.error_text


async def test_cpu_time_is_counted_and_limited(backend):
    box = await backend.open(SandboxSpec(cpus=0.25))
    code = "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass"
    run = await box.exec(["python3", "-c", code])
    await box.close()
    assert run.ok, run
    assert 0.05 < run.cpu_s < 0.6 * run.wall_s, run


async def test_a_cancelled_command_is_killed(box):
    task = asyncio.create_task(box.exec(["sh", "-c", "sleep 500 & setsid sleep 500; sleep 500"]))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        run = await box.exec(["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep"])
        if run.text.strip() == "0":
            break
        await asyncio.sleep(0.05)
    assert run.text.strip() == "0"


async def test_the_loop_is_never_blocked(backend):
    """While sandboxes open, flood and close, the loop keeps turning."""
    longest = 0.0

    async def watch():
        nonlocal longest
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest = max(longest, now - last - 0.01)
            last = now

    watcher = asyncio.create_task(watch())

    async def work():
        box = await backend.open(SandboxSpec())
        await box.exec(["sh", "-c", "yes | head -c 5000000; sleep 0.2"])
        await box.write("big", b"x" * 5_000_000)
        await box.read("big")
        await box.close()

    await asyncio.gather(*(work() for _ in range(6)))
    watcher.cancel()
    assert longest < 1.0


async def test_many_at_once(backend):
    boxes = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(40)))
    runs = await asyncio.gather(
        *(box.exec(["sh", "-c", f"echo {i} > /tmp/x; cat /tmp/x"]) for i, box in enumerate(boxes))
    )
    assert [run.text.strip() for run in runs] == [str(i) for i in range(40)]
    await asyncio.gather(*(box.close() for box in boxes))


async def test_descriptors_do_not_leak(backend):
    async def once():
        box = await backend.open(SandboxSpec())
        await box.exec(["cat"], stdin=b"x" * 100_000)
        await box.write("a", "b")
        await box.read("a")
        await box.close()

    await once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await once()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def image(tmp_path):
    """A small root file system: a shell, a few programs and what they need."""
    root = tmp_path / "a:b,image"
    for name in ("sh", "cat", "ls", "id", "rm"):
        program = shutil.which(name)
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for file in [program, *(word for word in told.split() if word.startswith("/"))]:
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(file), target)
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy(root / shutil.which("sh").lstrip("/"), root / "bin" / "sh")
    (root / "data").write_text("of the image\n")
    return root


async def test_an_image_is_a_read_only_base(backend, image):
    spec = SandboxSpec(image=str(image))
    box = await backend.open(spec)
    try:
        run = await box.exec(["sh", "-c", "cat /data; id -u; ls /; echo x > /tmp/y; cat /tmp/y"])
        assert run.text.splitlines()[:2] == ["of the image", "1000"], run
        assert run.text.splitlines()[-1] == "x", run
        with pytest.raises(PermissionError):
            await box.write("/data", "changed")
        await box.write("/new/file", "n")
    finally:
        await box.close()
    assert (image / "data").read_text() == "of the image\n"
    assert not (image / "new").exists()
    again = await backend.open(spec)
    assert await again.read("/data") == b"of the image\n"
    await again.close()


async def test_a_missing_image_is_named(backend, tmp_path):
    with pytest.raises(ConfigError, match="no-such-image"):
        await backend.open(SandboxSpec(image=str(tmp_path / "no-such-image")))


async def test_root_inside_has_no_rights(backend):
    box = await backend.open(SandboxSpec(user="root"))
    run = await box.exec(
        ["sh", "-c", "id -u; cat /proc/self/status | grep CapEff; mount -t tmpfs x /mnt"]
    )
    await box.close()
    assert run.text.split()[0] == "0"
    assert int(run.text.split()[-1], 16) == 0
    assert run.exit_code != 0


async def test_a_user_of_no_image_is_refused_by_name(backend):
    with pytest.raises(CapabilityError, match="postgres"):
        await backend.open(SandboxSpec(user="postgres"))


@pytest.mark.parametrize("isolation", ["gvisor", "microvm"])
async def test_stronger_isolation_is_refused_by_name(backend, isolation):
    with pytest.raises(IsolationError, match=isolation) as caught:
        await backend.open(SandboxSpec(isolation=isolation))
    assert isolation in caught.value.missing


async def test_a_sandbox_is_over_when_closed(box):
    running = asyncio.create_task(box.exec(["sleep", "100"]))
    await asyncio.sleep(0.2)
    await box.close()
    await box.close()
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await box.read("x")


def test_one_backend_in_several_event_loops():
    backend = NativeBackend()

    async def once():
        box = await backend.open(SandboxSpec())
        run = await box.exec(["echo", "hi"])
        await box.close()
        return run.text

    try:
        assert [asyncio.run(once()) for _ in range(2)] == ["hi\n"] * 2
    except IsolationError as error:
        pytest.skip(f"no native sandbox here: {error}")
    finally:
        asyncio.run(backend.close())


async def test_the_supervisor_tells_nothing_of_the_host(backend):
    box = await backend.open(SandboxSpec())
    lines = (await box.exec(["sh", "-c", "cat /proc/1/cmdline /proc/2/cmdline"])).stdout
    assert b"/" not in lines
    assert lines.count(b"quintain") == 2
    await box.close()


async def test_a_closed_backend_says_so(backend):
    box = await backend.open(SandboxSpec())
    await backend.close()
    with pytest.raises(
        SandboxError, match="the native backend was closed: make a new one"
    ) as found:
        await backend.open(SandboxSpec())
    assert not found.value.retryable
    with pytest.raises(SandboxError):
        await box.exec(["true"])
    await backend.close()
