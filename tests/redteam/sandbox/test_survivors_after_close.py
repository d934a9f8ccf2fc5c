"""Attack: outlive the sandbox."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

MARK = "7654321"


def running():
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == b"sleep\0" + MARK.encode() + b"\0":
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


async def test_close(open_sandbox, any_launcher):
    control = subprocess.Popen(["sh", "-c", f"setsid sleep {MARK} & wait"], start_new_session=True)
    while not running():
        time.sleep(0.01)
    control.kill()
    control.wait()
    (survivor,) = running()
    subprocess.run(["kill", "-9", str(survivor)], check=True)
    sandbox = await open_sandbox()
    script = f"trap '' TERM HUP INT; setsid sleep {MARK} & sleep {MARK}"
    task = asyncio.create_task(sandbox.exec(["sh", "-c", script]))
    while len([pid for pid in running() if pid != survivor]) < 2:
        await asyncio.sleep(0.01)
    await sandbox.close()
    assert [pid for pid in running() if pid != survivor] == []
    await asyncio.gather(task, return_exceptions=True)
