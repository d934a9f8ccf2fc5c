"""Attack: leave a process running after the command ended (the control: it runs on)."""

from __future__ import annotations

import os
import signal
import subprocess
import time

DETACH = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for fd in range(3):
    os.close(fd)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(60)
"""


async def test_detached(tmp_path, sandbox, any_launcher, python):
    note = tmp_path / "pid"
    subprocess.run(python(DETACH, note, inside=False), check=True)
    for _ in range(100):
        if note.exists() and note.read_text():
            break
        time.sleep(0.02)
    survivor = int(note.read_text())
    os.kill(survivor, signal.SIGKILL)
    await sandbox.exec(python(DETACH, "/work/pid", inside=True))
    run = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c python3"])
    mine = 2 if any_launcher == "python" else 0
    assert int(run.text) <= mine, run


async def test_detached_at_a_timeout(sandbox, any_launcher, python):
    slow = DETACH.replace("    os._exit(0)\nos.setsid()", "    time.sleep(60)\nos.setsid()", 1)
    run = await sandbox.exec(python(slow, "/work/pid", inside=True), timeout_s=1)
    assert run.killed == "timeout"
    pid = (await sandbox.read("pid")).decode()
    run = await sandbox.exec(["test", "-e", f"/proc/{pid}/cwd"])
    assert run.exit_code == 1
