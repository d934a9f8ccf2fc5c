"""Attack: take memory without end (the control: 300 MB)."""

from __future__ import annotations

BOMB = """
import sys
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(b"x" * (1 << 20))
print(len(kept))
"""


async def test_one_process(open_sandbox, any_launcher, unprotected, python):
    control = unprotected(python(BOMB, 300, inside=False))
    assert control.stdout.strip() == "300"
    sandbox = await open_sandbox(memory_mb=64, disk_mb=16)
    run = await sandbox.exec(python(BOMB, 300, inside=True), timeout_s=30)
    assert run.killed == "memory", run
    assert run.exit_code == -9
    after = await sandbox.exec(["echo", "alive"])
    assert after.text == "alive\n"


async def test_many_small_processes(open_sandbox):
    """Many small processes share the limit, and the supervisor is never the victim."""
    sandbox = await open_sandbox(memory_mb=48, disk_mb=16, max_pids=64)
    code = (
        "import os, time\n"
        "for _ in range(50):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(os.urandom(1 << 20) * 4)\n"
        "        time.sleep(3)\n"
        "        os._exit(0)\n"
        "while True:\n"
        "    try:\n"
        "        _, status = os.wait()\n"
        "    except ChildProcessError:\n"
        "        break\n"
        "    if status:\n"
        "        raise SystemExit(1)\n"
    )
    run = await sandbox.exec(["python3", "-c", code], timeout_s=60)
    assert run.killed == "memory", run
    assert (await sandbox.exec(["echo", "alive"])).text == "alive\n"


async def test_shared_memory_counts(open_sandbox):
    """What fills /dev/shm is bounded by the disk budget."""
    sandbox = await open_sandbox(memory_mb=64, disk_mb=8)
    run = await sandbox.exec(["sh", "-c", "head -c 40000000 /dev/zero > /dev/shm/x"])
    assert "No space left" in run.error_text, run
