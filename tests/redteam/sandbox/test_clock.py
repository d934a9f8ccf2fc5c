"""Attack: set the machine's clock (the control: to its current value)."""

from __future__ import annotations

CODE = """
import time
time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
print("set")
"""


async def test_clock(sandbox, system_call, unprotected, python, as_root):
    assert unprotected(python(CODE, inside=False)).stdout == "set\n"
    run = await sandbox.exec(python(CODE, inside=True))
    assert "PermissionError" in run.error_text, run
    assert (await system_call("settimeofday", -1, -1))[1] == "refused"
    assert (await system_call("adjtimex", "00"))[1] == "refused"
