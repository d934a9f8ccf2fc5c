"""Every limit of a spec, over every container backend."""

from __future__ import annotations

import asyncio

import pytest

from quintain.errors import IsolationError
from quintain.registry import sandboxes
from quintain.task import SandboxSpec

BOMB = "kept = [b'x' * (1 << 20) for _ in range(400)]"
FORKS = """
import os, signal
made = 0
try:
    while made < 300:
        if os.fork() == 0:
            signal.pause()
        made += 1
        print(made, flush=True)
except OSError:
    raise SystemExit(1)
"""
COUNTED = """
import os, sys, threading, time
stop = threading.Event()
try:
    for _ in range(200):
        if sys.argv[1] == "threads":
            threading.Thread(target=stop.wait, daemon=True).start()
        elif os.fork() == 0:
            os._exit(0)
    time.sleep(2)
    print("all")
except (OSError, RuntimeError):
    os._exit(1)
"""
FILL = """
import sys
with open(sys.argv[1] + "/fill", "wb") as file:
    for _ in range(100):
        file.write(bytes(1 << 20))
"""
SPIN = """
import time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
"""


async def test_memory(backend):
    box = await backend.open(SandboxSpec(memory_mb=64, disk_mb=16))
    run = await box.exec(["python3", "-c", BOMB])
    assert run.killed == "memory", run
    assert run.exit_code == -9
    if backend.name != "gvisor":  # whose kernel is a process, which dies as a whole
        assert (await box.exec(["echo", "alive"])).text == "alive\n"
    await box.close()


async def test_processes(backend):
    box = await backend.open(SandboxSpec(max_pids=40))
    run = await box.exec(["python3", "-c", FORKS])
    made = int(run.text.split()[-1])
    if backend.name == "gvisor":  # they are counted now and then
        assert made < 300, run
    else:
        assert 30 < made < 40, run
    assert run.killed == "pids", run
    assert (await box.exec(["echo", "alive"])).text == "alive\n"
    await box.close()


@pytest.mark.parametrize("what", ["threads", "zombies"])
async def test_threads_and_zombies_count(backend, what):
    box = await backend.open(SandboxSpec(max_pids=40))
    run = await box.exec(["python3", "-c", COUNTED, what], timeout_s=20)
    assert run.killed == "pids", run
    assert "all" not in run.text
    await box.close()


async def test_disk(backend):
    box = await backend.open(SandboxSpec(disk_mb=16))
    for place in ("/work", "/tmp", "/dev/shm", "/home/sandbox", "/var/tmp"):
        run = await box.exec(["python3", "-c", FILL, place])
        assert run.exit_code == 1, run
        assert "No space left" in run.error_text or "File too large" in run.error_text, run
        await box.exec(["rm", "-f", f"{place}/fill"])
    assert (await box.exec(["sh", "-c", "echo ok > /work/small"])).ok
    await box.close()


async def test_disk_of_all_places_together(backend):
    """Filling one place after the other writes no more than the budget."""
    box = await backend.open(SandboxSpec(disk_mb=16))
    for place in ("/work", "/tmp", "/dev/shm", "/home/sandbox", "/var/tmp"):
        await box.exec(["python3", "-c", FILL, place])
    script = "cat /*/fill /*/*/fill 2>/dev/null | wc -c"
    run = await box.exec(["sh", "-c", script])
    assert 8 << 20 < int(run.text) <= 16 << 20, run
    await box.close()


async def test_processor(backend):
    box = await backend.open(SandboxSpec(cpus=0.25))
    run = await box.exec(["python3", "-c", SPIN])
    await box.close()
    assert run.ok, run
    assert 0.05 < run.cpu_s < 0.75 * run.wall_s, run


async def test_output_is_cut_at_the_source(backend):
    box = await backend.open(SandboxSpec(max_output_bytes=10_000))
    script = (
        "echo first; head -c 30000000 /dev/zero; echo last; head -c 10001 /dev/zero >&2; exit 5"
    )
    run = await box.exec(["sh", "-c", script])
    exact = await box.exec(["sh", "-c", "head -c 9994 /dev/zero; echo last; echo short >&2"])
    await box.close()
    assert (run.exit_code, len(run.stdout), len(run.stderr)) == (5, 10_000, 10_000)
    assert run.stdout.startswith(b"first\n\0")
    assert run.stdout.endswith(b"\0last\n")
    # "first", "last" and the zeros, less what is kept beside the mark of 28 bytes
    assert b"\n... 29990039 bytes cut ...\n" in run.stdout
    assert run.truncated
    assert (len(exact.stdout), exact.stdout[-6:], exact.stderr) == (9999, b"\0last\n", b"short\n")
    assert not exact.truncated


async def test_time(backend):
    box = await backend.open(SandboxSpec())
    script = "echo began; setsid sh -c 'trap \"\" TERM; sleep 500' & sleep 500"
    run = await box.exec(["sh", "-c", script], timeout_s=1)
    assert (run.killed, run.text) == ("timeout", "began\n")
    script = "cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep"
    assert (await box.exec(["sh", "-c", script])).text.strip() == "0"
    await box.close()


@pytest.mark.runc
async def test_a_stopped_minder_changes_nothing():
    """What runs as root may signal its minder: the limit of time holds, and others go on."""
    backend = sandboxes.get("runc")()
    box = await backend.open(SandboxSpec(user="root"))
    beside = asyncio.create_task(box.exec(["sh", "-c", "sleep 12; echo done"]))
    script = "(trap '' TERM; sleep 400) & kill -STOP $PPID; sleep 500"
    run = await box.exec(["sh", "-c", script], timeout_s=1)
    assert run.killed == "timeout", run
    script = "cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep"
    assert (await box.exec(["sh", "-c", script])).text.strip() == "1"
    assert (await beside).text == "done\n"
    run = await box.exec(["sh", "-c", "kill -9 $PPID; sleep 500"])
    assert run.exit_code == -9, run
    await box.close()
    await backend.close()


async def test_stronger_isolation_is_refused_by_name(backend):
    with pytest.raises(IsolationError, match="microvm") as caught:
        await backend.open(SandboxSpec(isolation="microvm"))
    assert "microvm" in caught.value.missing
