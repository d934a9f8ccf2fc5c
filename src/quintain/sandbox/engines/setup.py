"""What every container backend gives its containers: limits, users, places to write, masks."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quintain.errors import CapabilityError
from quintain.sandbox import layout, network
from quintain.sandbox.build import cache_folder
from quintain.sandbox.engines import frames
from quintain.sandbox.filter import program
from quintain.task import SandboxSpec

AGENT = "/.agent"
"""Where the agent is mounted."""
CAPABILITIES = ("CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID")
"""Of the agent; commands have none."""
OWN_PROCESSES = 2
"""The agent and a minder count under the container's limit of processes."""
MASKED = (
    "/proc/latency_stats", "/proc/timer_stats", "/sys/firmware", "/sys/kernel", "/sys/module",
    "/sys/block", "/sys/class", "/sys/bus", "/sys/dev", "/sys/power", "/sys/hypervisor",
    "/sys/fs/bpf", "/sys/fs/pstore",
    *(f"/proc/{name}" for name in (*layout.COVERED, *layout.EMPTIED)),
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def uid(spec: SandboxSpec) -> int:
    """Who runs commands, as seen inside.

    Raises:
        CapabilityError: a user that containers do not know.
    """
    users = {"sandbox": layout.USER_UID, "root": 0}
    if spec.user not in users:
        raise CapabilityError(f"user {spec.user!r}: container sandboxes know 'sandbox' and 'root'")
    return users[spec.user]


def first_frame(
    spec: SandboxSpec, *, own_kernel: bool = False, places: Sequence[str] = ()
) -> bytes:
    """The agent's set-up for a spec.

    Args:
        spec: what is wanted.
        places: see `frames.setup`.
        own_kernel: for gVisor, which has fewer limits, and no control groups inside: there the
            agent counts processes and kills a command's tree when there are too many.
    """
    # A page more than there is: a full disk says so before this limit does.
    disk = (spec.disk_mb << 20) + 4096
    limits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
        resource.RLIMIT_MSGQUEUE: (819_200, 819_200),
        resource.RLIMIT_FSIZE: (disk, disk),
        resource.RLIMIT_STACK: (8 << 20, 64 << 20),
    }
    if own_kernel:
        del limits[resource.RLIMIT_MSGQUEUE]
    watched = spec.max_pids + OWN_PROCESSES if own_kernel else 0
    return frames.setup(uid(spec), program(), limits, watched_pids=watched, places=places)


def shares(spec: SandboxSpec) -> dict[str, int]:
    """The places to write and how much of `disk_mb` each gets, in bytes; together no more.

    For where one budget for all cannot be had: the workdir gets half.
    """
    total = spec.disk_mb << 20
    parts = {"/tmp": 4, "/dev/shm": 8, "/home/sandbox": 16, "/var/tmp": 32, "/run": 32}
    parts[spec.workdir] = 2
    return {path: max(4096, total // part // 4096 * 4096) for path, part in parts.items()}


def network_mounts(spec: SandboxSpec) -> list[tuple[str, str]]:
    """What a networked sandbox finds inside, as `(source, target)`: whom the host trusts."""
    trusted = network.certificates()
    if spec.network.mode == "none" or not trusted:
        return []
    return [(os.path.realpath(trusted), network.CERTIFICATES)]


def file_of(name: str, data: bytes) -> str:
    """The path of a file with that content in the user's cache, to mount into containers."""
    folder = cache_folder() / "mounted"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.is_file() or path.read_bytes() != data:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(data)
        Path(file.name).chmod(0o444)
        os.replace(file.name, path)
    return str(path)


def meminfo(spec: SandboxSpec) -> str:
    """The path of a `/proc/meminfo` that tells the sandbox's memory, not the host's."""
    total = spec.memory_mb * 1024
    lines = {"MemTotal": total, "MemFree": total, "MemAvailable": total, "Buffers": 0, "Cached": 0}
    lines |= {"SwapTotal": 0, "SwapFree": 0}
    text = "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in lines.items())
    return file_of(f"meminfo-{spec.memory_mb}", text.encode())
