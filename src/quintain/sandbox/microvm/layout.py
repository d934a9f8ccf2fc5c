"""What a microVM's sandbox sees: the steps by which the agent builds its root.

The same picture as in a native sandbox (`sandbox/layout.py`): read-only layers under one writable
layer of `disk_mb` in the guest's memory, an `/etc` of its own, minimal `/dev`, a `/proc` that shows
nothing of the machine. The limits are control groups of the guest's kernel.
"""

from __future__ import annotations

import math
import resource

from quintain.errors import CapabilityError
from quintain.sandbox import layout, wire
from quintain.sandbox.filter import program
from quintain.sandbox.images.image import Image, User
from quintain.task import SandboxSpec

Step = tuple[str | bytes | int, ...]
OVERHEAD_MB = 128
"""Of the guest's kernel, its agent and its page cache."""
PERIOD_US = 100_000
READ_ONLY = wire.MS_RDONLY | wire.MS_NOSUID | wire.MS_NODEV
MOST_DISKS = 20
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


def steps(spec: SandboxSpec, image: Image) -> list[Step]:
    """All steps, in order.

    Args:
        spec: what is wanted.
        image: whose folders are the machine's disks, in the order of `layers.of`.
    """
    return [
        *_limits(spec),
        *_root(spec, image),
        *_etc(image),
        *_devices(),
        *_folders(spec, image.user(spec.user)),
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


def _root(spec: SandboxSpec, image: Image) -> list[Step]:
    size = f"size={spec.disk_mb}m,nr_inodes={max(4096, spec.disk_mb * 256)},mode=755"
    found = [_mount("disk", DISK, "tmpfs", wire.MS_NOSUID, size)]
    found += [_mkdir(f"{DISK}/{name}") for name in ("upper", "work", "dev")]
    number = 0
    for tree in image.trees:
        lowers = []
        for _ in tree.lowers:
            lowers.append(f"/layers/{number}")
            found.append(_mkdir(lowers[-1]))
            found.append(_mount(_disk(number), lowers[-1], "squashfs", READ_ONLY))
            number += 1
        found += _tree(tree.target, lowers)
    return found


def _disk(number: int) -> str:
    """The device of a disk."""
    if number >= MOST_DISKS:
        raise CapabilityError(f"an image of more than {MOST_DISKS} layers does not fit a microVM")
    return f"/dev/vd{chr(ord('a') + number)}"


def _tree(target: str, lowers: list[str]) -> list[Step]:
    """One tree of an image: the root is written to, what is laid over it is not."""
    options = f"lowerdir={':'.join(lowers)}"
    if target == "/":
        options += f",upperdir={DISK}/upper,workdir={DISK}/work"
        return [_mount("overlay", BOX, "overlay", wire.MS_NOSUID | wire.MS_NODEV, options)]
    parts = target.strip("/").split("/")
    paths = [f"{BOX}/{'/'.join(parts[: depth + 1])}" for depth in range(len(parts))]
    found: list[Step] = [_new(path, 0) for path in paths]
    if len(lowers) == 1:
        return [*found, _mount(lowers[0], BOX + target, flags=wire.MS_BIND)]
    return [*found, _mount("overlay", BOX + target, "overlay", READ_ONLY, options)]


def _etc(image: Image) -> list[Step]:
    """What of `/etc` is a sandbox's own, whatever the image brings."""
    given = layout.etc_files()
    files = {name: given[name] for name in ("hosts", "hostname", "resolv.conf", "nsswitch.conf")}
    files |= {"passwd": image.passwd, "group": image.group}
    found: list[Step] = [_new(f"{BOX}/etc", 0)]
    for name, text in files.items():
        found += [("?unlink", f"{BOX}/etc/{name}"), ("write", f"{BOX}/etc/{name}", text)]
    return found


def _devices() -> list[Step]:
    dev = f"{DISK}/dev"
    found: list[Step] = [_new(f"{BOX}/dev", 0)]
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


def _folders(spec: SandboxSpec, user: User) -> list[Step]:
    names = ("proc", "home", "opt", "run", "var", "mnt", "srv")
    found: list[Step] = [_new(f"{BOX}/{name}", 0) for name in names]
    found += [_mkdir(f"{BOX}/root", 0o700), _mkdir(f"{BOX}/tmp", 0o1777)]
    found.append(_mkdir(f"{BOX}/var/tmp", 0o1777))
    if user.home.startswith("/home/"):
        found.append(_mkdir(BOX + user.home, owner=user.uid))
    parts = [part for part in spec.workdir.split("/") if part]
    for depth in range(1, len(parts) + 1):
        path = "/".join([BOX, *parts[:depth]])
        found.append(_mkdir(path, owner=user.uid) if depth == len(parts) else _new(path, user.uid))
    return found


def _new(path: str, owner: int) -> Step:
    """A folder that stays as it is where there is one."""
    return ("folder", path, "0755", owner)


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
