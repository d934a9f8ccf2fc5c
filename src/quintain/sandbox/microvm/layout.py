"""What a microVM's sandbox sees: the steps by which the agent builds its root.

The same picture as in a native sandbox (`sandbox/layout.py`): read-only layers under one writable
layer of `disk_mb` in the guest's memory, an `/etc` of its own, minimal `/dev`, a `/proc` that shows
nothing of the machine. The limits are control groups of the guest's kernel.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Sequence

from quintain.sandbox import layout, wire
from quintain.sandbox.filter import program
from quintain.task import SandboxSpec

Step = tuple[str | bytes | int, ...]
OVERHEAD_MB = 128
"""Of the guest's kernel, its agent and its page cache."""
PERIOD_US = 100_000
BOX, DISK, COVERS = "/box", "/disk", "/covers"
OPTIONAL = "?"
"""Begins the name of a step that may fail."""
GUARDED = wire.MS_NOSUID | wire.MS_NODEV | wire.MS_NOEXEC
LOCKED = wire.MS_BIND | wire.MS_REMOUNT | wire.MS_RDONLY


def memory_mb(spec: SandboxSpec) -> int:
    """The guest's memory: the candidate's, its files, and the kernel's."""
    return spec.memory_mb + spec.disk_mb + OVERHEAD_MB


def processors(spec: SandboxSpec) -> int:
    """Virtual processors: whole ones; the control group limits fractions."""
    return math.ceil(spec.cpus)


def user(spec: SandboxSpec) -> int:
    """The uid that runs commands."""
    return layout.INIT_UID if spec.user == "root" else layout.USER_UID


def steps(spec: SandboxSpec, layers: Sequence[str], links: Sequence[tuple[str, str]]) -> list[Step]:
    """All steps, in order.

    Args:
        spec: what is wanted.
        layers: where each disk is mounted: "" for a layer of the root, lowest first, or a folder
            of it.
        links: to make in the root, target and path.
    """
    return [
        *_limits(spec),
        *_root(spec, layers),
        *(("link", target, BOX + path) for target, path in links),
        *_etc(),
        *_devices(),
        *_folders(spec),
        *_proc(spec),
        ("hostname", "sandbox"),
        ("loopback",),
        *_rights(spec),
        ("enter", BOX),
    ]


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> Step:
    return ("mount", source, target, kind, flags, data)


def _mkdir(path: str, mode: int = 0o755, owner: int = 0) -> Step:
    return ("mkdir", path, f"0{mode:o}", owner)


def _limits(spec: SandboxSpec) -> list[Step]:
    group = "/groups/box"
    quota = max(1000, int(spec.cpus * PERIOD_US))
    return [
        ("write", f"{group}/memory.max", (spec.memory_mb + spec.disk_mb) << 20),
        ("write", f"{group}/pids.max", spec.max_pids),
        ("write", f"{group}/cpu.max", f"{quota} {PERIOD_US}"),
    ]


def _root(spec: SandboxSpec, layers: Sequence[str]) -> list[Step]:
    found: list[Step] = []
    lower: list[str] = []
    read_only = wire.MS_RDONLY | wire.MS_NOSUID | wire.MS_NODEV
    for number, place in enumerate(layers):
        folder = f"/layers/{number}"
        found += [_mkdir(folder)]
        found += [_mount(f"/dev/vd{chr(97 + number)}", folder, "squashfs", read_only)]
        if not place:
            lower.insert(0, folder)
    size = f"size={spec.disk_mb}m,nr_inodes={max(4096, spec.disk_mb * 256)},mode=755"
    found.append(_mount("disk", DISK, "tmpfs", wire.MS_NOSUID, size))
    found += [_mkdir(f"{DISK}/{name}") for name in ("upper", "work", "dev")]
    options = f"lowerdir={':'.join(lower)},upperdir={DISK}/upper,workdir={DISK}/work"
    found.append(_mount("overlay", BOX, "overlay", wire.MS_NOSUID | wire.MS_NODEV, options))
    for number, place in enumerate(layers):
        if place:
            parents = place.strip("/").split("/")
            for depth in range(len(parents)):
                found.append(_mkdir(f"{BOX}/{'/'.join(parents[: depth + 1])}"))
            found.append(_mount(f"/layers/{number}", BOX + place, flags=wire.MS_BIND))
    return found


def _etc() -> list[Step]:
    """The `/etc` that native sandboxes have, over whatever the image brings."""
    plan = wire.Plan()
    layout.stage_etc(plan, f"{BOX}/etc")
    found: list[Step] = [("?unlink", f"{BOX}/etc/resolv.conf")]
    for step, _, mode, _, _, strings in wire.steps(bytes(plan.data)):
        if step == wire.MKDIR:
            found.append(("mkdir", strings[0], f"0{mode:o}", 0))
        elif step == wire.WRITE:
            found.append(("write", *strings))
        elif step == wire.LINK:
            found.append(("link", *strings))
    return found


def _devices() -> list[Step]:
    dev = f"{DISK}/dev"
    found: list[Step] = [_mkdir(f"{BOX}/dev")]
    for name, (major, minor) in layout.DEVICES.items():
        found.append(("node", f"{dev}/{name}", major, minor))
    for target, name in (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        found.append(("link", f"/proc/self/{target}", f"{dev}/{name}"))
    found += [
        _mkdir(f"{dev}/shm", 0o1777),
        _mkdir(f"{dev}/pts"),
        ("link", "pts/ptmx", f"{dev}/ptmx"),
    ]
    terminals = "newinstance,ptmxmode=0666,mode=0620"
    found.append(_mount("devpts", f"{dev}/pts", "devpts", GUARDED & ~wire.MS_NODEV, terminals))
    found.append(_mount(dev, f"{BOX}/dev", flags=wire.MS_BIND | wire.MS_REC))
    return found


def _folders(spec: SandboxSpec) -> list[Step]:
    found: list[Step] = [
        _mkdir(f"{BOX}/{name}") for name in ("proc", "home", "opt", "run", "var", "mnt", "srv")
    ]
    found += [_mkdir(f"{BOX}/root", 0o700), _mkdir(f"{BOX}/tmp", 0o1777)]
    found += [_mkdir(f"{BOX}/var/tmp", 0o1777), _mkdir(f"{BOX}/home/sandbox", owner=user(spec))]
    parts = spec.workdir.strip("/").split("/")
    for depth in range(len(parts)):
        found.append(_mkdir(f"{BOX}/{'/'.join(parts[: depth + 1])}", owner=user(spec)))
    return found


def _proc(spec: SandboxSpec) -> list[Step]:
    proc = f"{BOX}/proc"
    found: list[Step] = [
        ("?write", "/proc/sys/user/max_user_namespaces", "0"),
        _mkdir(COVERS),
        _mount("covers", COVERS, "tmpfs", wire.MS_NOSUID, "size=1m,mode=755"),
        _mkdir(f"{COVERS}/empty"),
        ("write", f"{COVERS}/nothing", ""),
        ("write", f"{COVERS}/meminfo", _meminfo(spec)),
        _mount("", COVERS, flags=wire.MS_REMOUNT | wire.MS_RDONLY | wire.MS_NOSUID),
        _mount("proc", proc, "proc", GUARDED),
        _mount(proc, proc, flags=wire.MS_BIND),
        _mount("", proc, flags=LOCKED | GUARDED),
    ]
    for name in layout.COVERED:
        found.append(("?mount", f"{COVERS}/nothing", f"{proc}/{name}", "", wire.MS_BIND, ""))
    for name in layout.EMPTIED:
        found.append(("?mount", f"{COVERS}/empty", f"{proc}/{name}", "", wire.MS_BIND, ""))
    found.append(_mount(f"{COVERS}/meminfo", f"{proc}/meminfo", flags=wire.MS_BIND))
    return found


def _meminfo(spec: SandboxSpec) -> str:
    total = spec.memory_mb * 1024
    lines = {"MemTotal": total, "MemFree": total, "MemAvailable": total, "Buffers": 0, "Cached": 0}
    lines |= {"SwapTotal": 0, "SwapFree": 0}
    return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in lines.items())


def _rights(spec: SandboxSpec) -> list[Step]:
    limits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
        resource.RLIMIT_MSGQUEUE: (819_200, 819_200),
        resource.RLIMIT_FSIZE: (spec.disk_mb << 20, spec.disk_mb << 20),
        resource.RLIMIT_STACK: (8 << 20, 64 << 20),
    }
    found: list[Step] = [("limit", kind, *pair) for kind, pair in limits.items()]
    return [*found, ("filter", program("x86_64"))]
