"""Control groups, version 1 or 2, as found at run time.

One folder a controller and owner (`quintain-<pid>-<start time>.…`), below it one a sandbox. The
supervisor stays outside: each command joins before it starts, through descriptors that were opened
with the owner's rights, so the limits count the candidate's processes and nothing else, and the
kernel never picks the supervisor when memory runs out. A group whose owner is dead is removed by
the next owner (`sweep`).

Version 2 follows the kernel's documentation (delegated subtree, `memory.oom.group` off); it is
tried where version 1 has no memory controller.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from quintain.sandbox import wire
from quintain.task import SandboxSpec

CONTROLLERS = ("memory", "pids", "cpu")
PREFIX = "quintain-"
PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Groups:
    """Where the groups of this owner go."""

    version: int
    """1, 2, or 0 where there are none."""
    folders: dict[str, str]
    """Controller to the folder below which this owner may make groups (version 2: the same)."""
    missing: dict[str, str]
    """Controller to why it cannot be used."""

    def places(self) -> list[str]:
        """The distinct parent folders."""
        return list(dict.fromkeys(self.folders.values()))


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot: with the PID it names one process.

    Raises:
        OSError: there is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19])


def find(root: str = "/") -> Groups:
    """Looks for usable controllers.

    Args:
        root: prefix of `/proc/self/cgroup` and of the mount points (for tests).
    """
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path(root, "proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            for name in names.split(",") if names else [""]:
                own[name] = path
    mounts: dict[str, tuple[str, str]] = {}
    with contextlib.suppress(OSError):
        for line in Path(root, "proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            fields = left.split()
            where = (str(Path(root, fields[4].lstrip("/"))), fields[3])
            if kind == "cgroup2":
                mounts.setdefault("", where)
            elif kind == "cgroup":
                for name in options.split(" ")[-1].split(","):
                    mounts.setdefault(name, where)
    folders, missing = _version_1(own, mounts)
    if folders:
        return Groups(1, folders, missing)
    folders, missing = _version_2(own, mounts)
    return Groups(2 if folders else 0, folders, missing)


def _below(own: str, mount: tuple[str, str]) -> str:
    where, top = mount
    inside = own if top == "/" else own.removeprefix(top)
    folder = where.rstrip("/") + "/" + inside.strip("/")
    return folder.rstrip("/") if os.path.isdir(folder) else where


def _version_1(
    own: dict[str, str], mounts: dict[str, tuple[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    folders, missing = {}, {}
    for name in CONTROLLERS:
        if name not in mounts:
            missing[name] = f"no control group mount for {name}"
            continue
        folder = _below(own.get(name, "/"), mounts[name])
        if os.access(folder, os.W_OK):
            folders[name] = folder
        else:
            missing[name] = f"{folder} is not writable for this user"
    return folders, missing


def _version_2(
    own: dict[str, str], mounts: dict[str, tuple[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    if "" not in mounts:
        return {}, dict.fromkeys(CONTROLLERS, "no control group mount was found")
    top = mounts[""][0]
    folder = _below(own.get("", "/"), mounts[""])
    while True:
        with contextlib.suppress(OSError):
            enabled = Path(folder, "cgroup.subtree_control").read_text().split()
            if all(name in enabled for name in CONTROLLERS) and os.access(folder, os.W_OK):
                return dict.fromkeys(CONTROLLERS, folder), {}
        if len(folder) <= len(top):
            break
        folder = os.path.dirname(folder)
    why = "no delegated group with memory, pids and cpu (systemd: Delegate=yes)"
    return {}, dict.fromkeys(CONTROLLERS, why)


def owner_name() -> str:
    """The name of this process's folders."""
    return f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}.{_pid_space()}"


def _pid_space() -> int:
    """Which PID namespace this process is in: elsewhere its PID names nobody, or another."""
    return os.stat("/proc/self/ns/pid").st_ino


def sweep(groups: Groups) -> list[str]:
    """Removes the groups of owners that are dead; returns what was removed."""
    removed = []
    for place in groups.places():
        with contextlib.suppress(OSError):
            for entry in os.listdir(place):
                if entry.startswith(PREFIX) and not is_alive(entry):
                    removed += _remove_tree(os.path.join(place, entry))
    return removed


def remove(groups: Groups, name: str) -> list[str]:
    """Removes what a server that was killed left; returns what was removed."""
    removed = []
    for place in groups.places():
        folder = os.path.join(place, name)
        if os.path.isdir(folder):
            removed += _remove_tree(folder)
    return removed


def alive(pid: str, start: str) -> bool:
    """Whether the process of that PID and start time still lives."""
    try:
        return str(start_time(int(pid))) == start
    except (OSError, ValueError):
        return False


def is_alive(entry: str) -> bool:
    """Whether the owner named by a group still lives, as far as can be seen from here.

    The name is `quintain-<pid>-<start time>.<PID namespace>[.more]`: of an owner in another PID
    namespace nobody here can tell, so it counts as alive.
    """
    owner, _, more = entry.removeprefix(PREFIX).partition(".")
    pid, _, start = owner.partition("-")
    if more.partition(".")[0] not in ("", str(_pid_space())):
        return True
    return alive(pid, start)


def _remove_tree(folder: str) -> list[str]:
    removed = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                removed += _remove_tree(entry.path)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        try:
            os.rmdir(folder)
        except OSError:
            time.sleep(0.005)
        else:
            return [*removed, folder]
    return removed


def stage(plan: wire.Plan, groups: Groups, name: str, host: str) -> None:
    """Steps that make this owner's folders, and remove them at its end."""
    for place in groups.places():
        folder = f"{host}{place}/{name}"
        plan.add(wire.MKDIR, folder, a=0o755, flags=wire.OPTIONAL)
        plan.add(wire.CLEAN, folder)
        if groups.version == 2:
            enable = " ".join(f"+{controller}" for controller in CONTROLLERS)
            plan.write(f"{folder}/cgroup.subtree_control", enable)


def limit(
    plan: wire.Plan, groups: Groups, name: str, number: int, spec: SandboxSpec, host: str
) -> None:
    """Steps that make one sandbox's groups with its limits, and let its commands join."""
    for place in groups.places():
        folder = f"{host}{place}/{name}/{number:08d}"
        plan.add(wire.MKDIR, folder, a=0o755)
        plan.add(wire.CLEAN, folder)
        # Version 1: a thread that moves itself takes no global lock; `cgroup.procs` would wait
        # for a grace period of the whole machine (tens of milliseconds under load).
        plan.add(wire.JOIN, f"{folder}/{'tasks' if groups.version == 1 else 'cgroup.procs'}")
    path = {
        controller: f"{host}{place}/{name}/{number:08d}"
        for controller, place in groups.folders.items()
    }
    bytes_ = str((spec.memory_mb + spec.disk_mb) << 20)
    quota = str(max(1000, int(spec.cpus * PERIOD_US)))
    if groups.version == 1:
        if "memory" in path:
            plan.write(f"{path['memory']}/memory.limit_in_bytes", bytes_)
            plan.write(f"{path['memory']}/memory.memsw.limit_in_bytes", bytes_, optional=True)
            plan.add(wire.COUNTER, f"{path['memory']}/memory.oom_control", "", a=wire.OOM_COUNTER)
        if "cpu" in path:
            plan.write(f"{path['cpu']}/cpu.cfs_quota_us", quota)
    else:
        if "memory" in path:
            plan.write(f"{path['memory']}/memory.max", bytes_)
            plan.write(f"{path['memory']}/memory.swap.max", "0", optional=True)
            plan.add(wire.COUNTER, f"{path['memory']}/memory.events", "", a=wire.OOM_COUNTER)
        if "cpu" in path:
            plan.write(f"{path['cpu']}/cpu.max", f"{quota} {PERIOD_US}")
    if "pids" in path:
        most = str(spec.max_pids)
        plan.write(f"{path['pids']}/pids.max", most)
        plan.add(wire.COUNTER, f"{path['pids']}/pids.events", "", a=wire.PIDS_COUNTER)
        plan.add(wire.COUNTER, f"{path['pids']}/pids.max", most, a=wire.PIDS_LIMIT)
