"""Stopping every process of a sandbox for a moment, by its first process, in Python.

SIGSTOP to everything in the PID namespace can neither be caught nor outrun: the kernel delivers it
before a fork completes. What another process continues meanwhile is stopped again in the next
round. Control groups would need one more hierarchy a sandbox, and ordinary users have none.

Standard library only: the Python launcher loads it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

STOP_ROUNDS = 2000
ROUND_S = 0.001
PATIENT_AFTER = 20


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _stands_still(pid: int, *, patient: bool = False) -> bool:
    """Whether every thread of a process is stopped or dead.

    Where it had time to (`patient`), also a thread stands still that no signal reaches because it
    waits in vfork for a child that does: it goes on no sooner.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
            if state in (b"T", b"t", b"Z", b"X"):
                continue
            if not (patient and state == b"D" and _waits_for_still(pid, thread)):
                return False
    return True


def _waits_for_still(pid: int, thread: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
        return any(_stands_still(int(child), patient=True) for child in file.read().split())
    return False


def freeze() -> frozenset[int]:
    """Stops everything but this process; returns what stood still before.

    Raises:
        OSError: a process could not be stopped; the others go on.
    """
    before = frozenset(pid for pid in _others() if _stands_still(pid))
    for turn in range(STOP_ROUNDS):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        if all(_stands_still(pid, patient=turn > PATIENT_AFTER) for pid in _others()):
            return before
        time.sleep(ROUND_S)
    thaw(before)
    raise OSError(errno.EBUSY, "a process could not be stopped")


def thaw(before: frozenset[int]) -> None:
    """Lets everything go on but what stood still before."""
    for pid in _others():
        if pid not in before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
