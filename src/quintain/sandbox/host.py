"""What this host offers to sandboxes, and what to do where it offers too little."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from quintain.sandbox import cgroups

MACHINES = ("x86_64", "aarch64")
CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Host:
    """The host as one owner finds it."""

    rootless: bool
    """Whether it works in a user namespace of its own (an ordinary user)."""
    groups: cgroups.Groups
    blocked: str
    """Why no sandbox can be opened at all; empty: it can be tried."""
    advice: str
    """What to do about it."""


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None


def has_capability(number: int) -> bool:
    """Whether this process has a capability, by its number in the kernel's list."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


def look() -> Host:
    """Finds out without opening a sandbox; cheap."""
    if sys.platform != "linux":
        return Host(
            True,
            cgroups.Groups(0, {}, {}),
            f"the native sandbox needs Linux namespaces; this is {platform.system()}",
            "use a container backend, or run Quintain in a Linux virtual machine or container",
        )
    if platform.machine() not in MACHINES:
        return Host(
            True,
            cgroups.Groups(0, {}, {}),
            f"the system-call filter knows {' and '.join(MACHINES)}, not {platform.machine()}",
            "use a container backend",
        )
    rootless = not (os.geteuid() == 0 and has_capability(CAP_SYS_ADMIN))
    blocked, advice = "", ""
    if _number("/proc/sys/user/max_user_namespaces") == 0:
        blocked = "user namespaces are switched off (user.max_user_namespaces = 0)"
        advice = "sysctl user.max_user_namespaces=10000"
    elif rootless and _number("/proc/sys/kernel/unprivileged_userns_clone") == 0:
        blocked = "user namespaces are switched off for ordinary users"
        advice = "sysctl kernel.unprivileged_userns_clone=1, or run as root"
    elif rootless and _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        advice = "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
    return Host(rootless, cgroups.find(), blocked, advice)
