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


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _stands_still(pid: int) -> bool:
    """Whether every thread of a process is stopped or dead."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] not in (b"T", b"t", b"Z", b"X"):
                return False
    return True


def freeze() -> frozenset[int]:
    """Stops everything but this process; returns what stood still before.

    Raises:
        OSError: a process could not be stopped; the others go on.
    """
    before = frozenset(pid for pid in _others() if _stands_still(pid))
    for _ in range(STOP_ROUNDS):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        if all(_stands_still(pid) for pid in _others()):
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
