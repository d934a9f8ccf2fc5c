"""Attack: take the processor from everybody else by priority."""

from __future__ import annotations

CODE = """
import os
try:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    print("raised")
except OSError as error:
    print(error.strerror)
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("real time")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
except OSError as error:
    print(error.strerror)
"""


async def test_priority(sandbox, unprotected, python, as_root):
    assert unprotected(python(CODE, inside=False)).stdout.startswith("raised\n")
    run = await sandbox.exec(python(CODE, inside=True))
    assert run.ok, run
    assert "raised" not in run.text
    assert "real time" not in run.text
