"""Attack: read or flood the kernel's log."""

from __future__ import annotations

CODE = """
import os
for path in ("/dev/kmsg", "/proc/kmsg", "/dev/log"):
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if os.read(log, 8192):
            print("read", path)
    except OSError as error:
        print(error.strerror)
"""


async def test_log(sandbox, system_call, unprotected, python, as_root):
    assert "read /dev/kmsg" in unprotected(python(CODE, inside=False)).stdout
    assert "read" not in (await sandbox.exec(python(CODE, inside=True))).text
    control, inside = await system_call("syslog", 10, 0, 0)
    assert control.startswith("allowed")
    assert inside == "refused"
