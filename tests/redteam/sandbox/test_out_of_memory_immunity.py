"""Attack: make itself the last process that the kernel kills, then take all memory."""

from __future__ import annotations

from pathlib import Path

IMMUNE = """
import sys
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(sys.argv[2])
    print("immune", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
kept = [b"x" * (1 << 20) for _ in range(int(sys.argv[1]))]
"""


async def test_immunity(open_sandbox, any_launcher, unprotected, python, as_root):
    # Not every root may go below its own score; the control writes that.
    own = Path("/proc/self/oom_score_adj").read_text().strip()
    assert "immune" in unprotected(python(IMMUNE, 1, own, inside=False)).stdout
    sandbox = await open_sandbox(memory_mb=48, disk_mb=8)
    run = await sandbox.exec(python(IMMUNE, 300, -1000, inside=True), timeout_s=30)
    assert "Read-only file system" in run.text or "Permission denied" in run.text, run
    assert run.killed == "memory", run
    assert (await sandbox.exec(["echo", "alive"])).text == "alive\n"
