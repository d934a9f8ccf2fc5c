"""Control groups around QEMU itself: what a guest that broke out of its kernel would still meet.

The limits that a spec asks for hold inside the guest; a guest cannot have more memory nor
processors than its machine. These groups also bound the machine's own process, where the host lets
us make them. Their names follow `sandbox/cgroups.py`, whose sweep removes those of dead owners.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from quintain.sandbox import cgroups
from quintain.sandbox.microvm.machine import TRANSLATION_MB, Hardware

PROCESS_MB = 256
"""QEMU's own memory beside the guest's and its generated code."""
THREADS = 64
SPARE_CPUS = 0.25
"""For devices, beside the guest's processors."""
PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one QEMU; made by `make`."""

    folders: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    """Files to which a process writes itself to join."""

    def remove(self) -> None:
        """Removes them; the process is gone."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def make(groups: cgroups.Groups, owner: str, number: int, hardware: Hardware) -> Group:
    """Groups for a new QEMU.

    Args:
        groups: as found on this host.
        owner: name of the backend's folder.
        number: of the machine.
        hardware: what it has.
    """
    folders, joins = [], []
    controllers: dict[str, list[str]] = {}
    for controller, place in groups.folders.items():
        controllers.setdefault(place, []).append(controller)
    memory = (hardware.memory_mb + TRANSLATION_MB + PROCESS_MB) << 20
    quota = int((hardware.processors + SPARE_CPUS) * PERIOD_US)
    for place, names in controllers.items():
        folder = Path(place, owner, f"{number:08d}")
        folder.parent.mkdir(exist_ok=True)
        if groups.version == 2:
            enable = " ".join(f"+{name}" for name in names)
            (folder.parent / "cgroup.subtree_control").write_text(enable)
        folder.mkdir()
        folders.append(str(folder))
        joins.append(str(folder / ("tasks" if groups.version == 1 else "cgroup.procs")))
        if "memory" in names:
            name = "memory.limit_in_bytes" if groups.version == 1 else "memory.max"
            (folder / name).write_text(str(memory))
        if "pids" in names:
            (folder / "pids.max").write_text(str(THREADS))
        if "cpu" in names and groups.version == 1:
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        elif "cpu" in names:
            (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    return Group(tuple(folders), tuple(joins))
