"""Attack: files without number, each empty (the control: 4,500)."""

from __future__ import annotations

CODE = """
import os, sys
n, most = 0, int(sys.argv[2])
try:
    while n < most: open(f'{sys.argv[1]}/{n}', 'w').close(); n += 1
except OSError as error: print(error.strerror)
print(n)
"""


async def test_inodes(request, tmp_path, open_sandbox, unprotected, python):
    control = unprotected(python(CODE, tmp_path, 4500, inside=False))
    assert control.stdout.split()[-1] == "4500"
    if request.config.getoption("--backend") == "podman":
        # It counts no files: what empty ones cost is counted as the container's memory.
        sandbox = await open_sandbox(disk_mb=4, memory_mb=32)
        run = await sandbox.exec(python(CODE, "/tmp", 200_000, inside=True), timeout_s=60)
        assert run.killed == "memory", run
        return
    sandbox = await open_sandbox(disk_mb=4)
    run = await sandbox.exec(python(CODE, "/tmp", 4500, inside=True), timeout_s=30)
    assert int(run.text.split()[-1]) < 4200, run
    assert "No space left" in run.text
