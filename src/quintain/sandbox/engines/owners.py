"""Whose a container is: a label that names one living process, and whether it still lives."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from quintain.sandbox.cgroups import start_time

LABEL = "quintain.owner"


@cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def mine() -> str:
    """This process: its PID, when it started, the machine's boot and the PID namespace."""
    return f"{os.getpid()}.{start_time(os.getpid())}.{_machine()}"


def is_dead(owner: str) -> bool:
    """Whether a label's process is gone for certain.

    A process of another PID namespace or machine cannot be seen from here: it counts as living.
    """
    pid, _, rest = owner.partition(".")
    started, _, machine = rest.partition(".")
    if machine != _machine() or not pid.isdigit():
        return False
    try:
        return str(start_time(int(pid))) != started
    except OSError:
        return True
