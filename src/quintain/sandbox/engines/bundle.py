"""The bundle of an OCI runtime: `config.json` of one sandbox, by the runtime specification."""

from __future__ import annotations

import os
from dataclasses import dataclass

from quintain.record import Json
from quintain.sandbox.engines import setup
from quintain.sandbox.engines.ground import Ground
from quintain.sandbox.engines.program import agent
from quintain.task import SandboxSpec

PERIOD_US = 100_000
_DEVICES = {
    "null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9),
    "tty": (5, 0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between runtimes."""

    program: str
    package: str
    flags: tuple[str, ...] = ()
    """Before the subcommand."""
    own_kernel: bool = False
    """Whether it runs a kernel of its own, which has its own `/proc` and ids (gVisor)."""
    unified_off: bool = False
    """Whether a version 2 mount beside version 1 control groups confuses it."""


KINDS = {
    "runc": Kind("runc", "runc"),
    "crun": Kind("crun", "crun", unified_off=True),
    "gvisor": Kind(
        "runsc",
        "runsc",
        ("--platform=ptrace", "--network=none", "--file-access=exclusive"),
        own_kernel=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bundle lies and whose ids it has."""

    folder: str
    group: str
    """Its control group."""
    first_id: int
    """Host id of root inside; the user's is one more."""
    ground: Ground
    """What its root is made of."""


def config(spec: SandboxSpec, kind: Kind, place: Place) -> dict[str, Json]:
    """The content of `config.json`."""
    capabilities = [f"CAP_{name}" for name in setup.CAPABILITIES]
    memory = (spec.memory_mb + spec.disk_mb) << 20
    process: dict[str, Json] = {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [setup.AGENT],
        "env": ["PATH=/usr/bin:/bin"],
        "cwd": "/",
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 4096, "hard": 4096}],
        "noNewPrivileges": True,
        "oomScoreAdj": 500,
    }
    linux: dict[str, Json] = {
        "cgroupsPath": place.group,
        "namespaces": [
            {"type": name} for name in ("pid", "ipc", "uts", "mount", "network", "cgroup")
        ],
        "resources": {
            "memory": {"limit": memory, "swap": memory},
            "pids": {"limit": _most_pids(spec, kind)},
            "cpu": {"quota": max(1000, int(spec.cpus * PERIOD_US)), "period": PERIOD_US},
            "devices": [
                {"allow": False, "access": "rwm"},
                *(
                    {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
                    for major, minor in (*_DEVICES.values(), (5, 2), (136, -1))
                    if minor >= 0
                ),
                {"allow": True, "type": "c", "major": 136, "access": "rw"},
            ],
        },
        "maskedPaths": list(setup.MASKED),
        "readonlyPaths": list(setup.READ_ONLY),
    }
    if not kind.own_kernel:
        maps = [
            {"containerID": inside, "hostID": place.first_id + at, "size": 1}
            for at, inside in enumerate((0, 1000))
        ]
        linux["namespaces"].append({"type": "user"})
        linux |= {"uidMappings": maps, "gidMappings": maps}
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": f"{place.folder}/root", "readonly": False},
        "hostname": "sandbox",
        "mounts": _mounts(spec, kind, place),
        "linux": linux,
    }


def _most_pids(spec: SandboxSpec, kind: Kind) -> int:
    # A kernel of its own has threads on the host that are no processes inside.
    return 16 * spec.max_pids + 512 if kind.own_kernel else spec.max_pids + setup.OWN_PROCESSES


def _mounts(spec: SandboxSpec, kind: Kind, place: Place) -> list[dict[str, Json]]:
    guarded = ["nosuid", "noexec", "nodev"]
    found: list[dict[str, Json]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": guarded},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "mode=755", "size=64k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        _bind(f"{place.folder}/disk/shm", "/dev/shm", "rw"),
    ]
    if not kind.own_kernel:
        found += [
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
             "options": [*guarded, "ro"]},
            _bind(setup.meminfo(spec), "/proc/meminfo"),
        ]  # fmt: skip
    found.append(_bind(str(agent()), setup.AGENT))
    found += [_bind(source, target) for source, target in setup.network_mounts(spec)]
    found += [_bind(source, target) for source, target in place.ground.binds]
    if kind.own_kernel:
        # It would put an unsized file system of its own there.
        found.append(_bind(f"{place.folder}/disk/tmp", "/tmp", "rw"))
    return found


def _bind(source: str, target: str, access: str = "ro") -> dict[str, Json]:
    return {
        "destination": target,
        "type": "bind",
        "source": os.path.realpath(source),
        "options": ["bind", "nosuid", "nodev", access],
    }
