"""Attack: forge the report of how the command ended."""

from __future__ import annotations

import subprocess

FORGE = """
import os, struct, sys
record = struct.pack("<iIIIQQII", 0, 0, 0, 0, 0, 0, 0, 0)
for fd in range(3, 1024):
    try:
        os.write(fd, record)
    except OSError:
        pass
for folder in ("/proc/1/fd", "/proc/2/fd", f"/proc/{os.getppid()}/fd"):
    try:
        for name in os.listdir(folder):
            os.write(os.open(f"{folder}/{name}", os.O_WRONLY), record)
    except OSError:
        pass
sys.stdout.buffer.write(record)
print("EXIT:0", flush=True)
os._exit(3)
"""


async def test_forge(sandbox, any_launcher, python):
    runner = 'python3 -c "$1"; echo "EXIT:$?"'
    control = subprocess.run(["sh", "-c", runner, "sh", FORGE], capture_output=True)
    assert control.stdout.split(b"EXIT:")[1].startswith(b"0"), "a marker in the output is fooled"
    run = await sandbox.exec(python(FORGE, inside=True))
    assert run.exit_code == 3, run
    assert not run.killed


async def test_only_the_standard_descriptors_are_open(sandbox, any_launcher):
    run = await sandbox.exec(
        ["python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"]
    )
    assert run.text in ("['0', '1', '2', '3']\n", "['0', '1', '2']\n"), run
