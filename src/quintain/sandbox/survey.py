"""What is inside a sandbox, seen from outside: the facts that a reset must bring back.

The owner reads them through descriptors that the supervisor opens, while no command runs: nothing
of the candidate's can colour them. Facts that differ between two fresh sandboxes of one kind
(numbers of mounts, devices, inodes, times) are left out; everything else is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from quintain.record import digest
from quintain.sandbox import wire

MAX_ENTRIES = 5_000
"""A fresh sandbox has some dozens."""
MAX_FACT_BYTES = 1 << 20
USED_BYTES = 2 << 20
"""What the kernel may still charge to an empty group: it gives pages back in batches."""
IPC = ("shm", "sem", "msg")
NETWORK = ("sockstat", "sockstat6", "unix", "dev")
"""Counts of a network namespace; its tables of sockets take the kernel milliseconds to list."""
OF_THE_HOST = re.compile(r" (?:orphan|alloc|mem|memory) \d+")
"""What `sockstat` tells about all namespaces together."""
GROUPS = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max",
               "memory.swap.max"),
    "pids": ("pids.max", "pids.current"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
}  # fmt: skip
"""Files that must read the same; those of one version are absent in the other."""
USED = ("memory.usage_in_bytes", "memory.current")
MEMBERS = ("tasks", "cgroup.procs")
_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Open = Callable[[str, int], Awaitable[int]]


async def survey(
    open_file: Open, groups: Mapping[str, str], env: Mapping[str, str]
) -> dict[str, str]:
    """The facts, by aspect, as text that two fresh sandboxes of one kind have in common.

    Args:
        open_file: gives a descriptor of what lies inside (`wire.PROC`, `wire.LAYER`).
        groups: controller to the folder of the sandbox's control group.
        env: what every command is given.

    Raises:
        SandboxError: the sandbox is broken.
        OSError: something could not be read.
    """
    facts = {"groups": _groups(groups)}
    layer = await open_file("/", wire.LAYER)
    try:
        facts["tree"] = _tree(layer)
    finally:
        os.close(layer)
    proc = await open_file("/proc", wire.PROC)
    try:
        facts["processes"] = " ".join(sorted(filter(str.isdigit, os.listdir(proc)), key=int))
    finally:
        os.close(proc)
    facts["environment"] = "\n".join(f"{name}={value}" for name, value in sorted(env.items()))
    mounts, ipc, net = await asyncio.gather(
        _read(open_file, "/proc/1/mountinfo"),
        _all(open_file, "/proc/sysvipc", IPC),
        _all(open_file, "/proc/1/net", NETWORK),
    )
    facts |= {"mounts": _mounts(mounts), "ipc": ipc, "network": OF_THE_HOST.sub("", net)}
    return facts


def digests(facts: Mapping[str, str]) -> dict[str, str]:
    """One short digest an aspect."""
    return {aspect: digest(text) for aspect, text in facts.items()}


async def _all(open_file: Open, folder: str, names: tuple[str, ...]) -> str:
    async def one(name: str) -> str:
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6, or without IPC
            return f"{name}:\n{await _read(open_file, f'{folder}/{name}')}"
        return ""

    return "".join(await asyncio.gather(*(one(name) for name in names)))


async def _read(open_file: Open, path: str) -> str:
    fd = await open_file(path, wire.PROC)
    try:
        data = bytearray()
        while piece := os.read(fd, 1 << 16):
            data += piece
            if len(data) > MAX_FACT_BYTES:
                break
        return data.decode("utf-8", "backslashreplace")
    finally:
        os.close(fd)


def _mounts(table: str) -> str:
    """The table of mounts without the numbers of mounts and devices."""
    lines = []
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        root, where, options = left.split()[3:6]
        kind, source, *more = right.split()
        lines.append(" ".join([root, where, options, kind, source, *more]))
    return "\n".join(lines)


def _tree(folder: int) -> str:
    """Every name in the writable layer: kind, mode, owner, content; other mounts stay out."""
    lines: list[str] = []
    _walk(folder, "", os.fstat(folder).st_dev, lines)
    return "\n".join(sorted(lines))


def _walk(folder: int, above: str, device: int, lines: list[str]) -> None:
    lines.append(f"{above!r} {sorted(os.listxattr(folder))}")
    with os.scandir(folder) as names:
        for name in names:
            if len(lines) > MAX_ENTRIES:
                return
            path = f"{above}/{name.name}"
            state = name.stat(follow_symlinks=False)
            line = f"{path!r} {state.st_mode:o} {state.st_uid} {state.st_gid} {state.st_rdev:x}"
            if stat.S_ISLNK(state.st_mode):
                line += f" {os.readlink(name.name, dir_fd=folder)!r}"
            elif stat.S_ISREG(state.st_mode):
                small = state.st_size <= MAX_FACT_BYTES
                line += f" {state.st_size} {_content(folder, name.name) if small else ''}"
            lines.append(line)
            if stat.S_ISDIR(state.st_mode) and state.st_dev == device:
                inner = os.open(name.name, _INTO, dir_fd=folder)
                try:
                    _walk(inner, path, device, lines)
                finally:
                    os.close(inner)


def _content(folder: int, name: str) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _groups(groups: Mapping[str, str]) -> str:
    lines = []
    for controller, folder in sorted(groups.items()):
        for name in GROUPS.get(controller, ()):
            with contextlib.suppress(FileNotFoundError):
                lines.append(f"{name} {Path(folder, name).read_text().strip()}")
        for name in MEMBERS:
            with contextlib.suppress(FileNotFoundError):
                lines.append(f"{controller}.{name} {Path(folder, name).read_text().split()}")
        for name in USED if controller == "memory" else ():
            with contextlib.suppress(FileNotFoundError):
                used = int(Path(folder, name).read_text())
                lines.append(f"{name} {used if used > USED_BYTES else 'nothing'}")
    return "\n".join(lines)
