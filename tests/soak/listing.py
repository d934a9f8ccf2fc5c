"""What a machine holds that a sandbox could have left behind: one listing before, one after."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from quintain.sandbox import cgroups

PREFIX = "quintain-"
SPACES = ("net", "mnt", "pid", "ipc", "uts", "user", "cgroup")


def listing(owners=()):
    """Kind to names; processes are those of the owners' sandboxes, whoever their parent is now."""
    found = {
        "processes": marked(owners),
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "groups": {f"{place}/{name}" for place in _places() for name in _own(place)},
        "folders": {
            f"{place}/{name}"
            for place in {tempfile.gettempdir(), "/dev/shm", "/run"}
            for name in os.listdir(place)
            if name.startswith((PREFIX, "tmp-quintain"))
        },
        "shared memory": _rows("/proc/sysvipc/shm"),
        "semaphores": _rows("/proc/sysvipc/sem"),
        "queues": _rows("/proc/sysvipc/msg"),
        "links": set(os.listdir("/sys/class/net")),
    }
    for space in SPACES:
        found[f"{space} namespaces"] = _spaces(space)
    return found


def left(before, after):
    """What is there after and was not before, by kind; kinds without any are left out."""
    return {
        kind: sorted(after[kind] - before[kind]) for kind in after if after[kind] - before[kind]
    }


def _places():
    """Every folder of every control group hierarchy in which this process's groups may lie."""
    places = set(cgroups.find().places())
    root = Path("/sys/fs/cgroup")
    if root.is_dir():
        places |= {str(entry) for entry in root.iterdir() if entry.is_dir()}
    return places


def _own(place):
    try:
        names = [name for name in os.listdir(place) if name.startswith(PREFIX)]
    except OSError:
        return []
    # Groups of a living owner are its own: another run on the same machine.
    return [name for name in names if not cgroups.is_alive(name)]


def _rows(table):
    """Ids of System V objects of users that only sandboxes have."""
    try:
        rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
    except OSError:
        return set()
    at = {"shm": 7, "sem": 4, "msg": 7}[Path(table).name]
    return {row[1] for row in rows if int(row[at]) >= 0x70000000}


def marked(owners):
    """Processes that carry an owner's mark in their environment or arguments, as `pid name`."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if state != b"Z" and any(owner.encode() in text for owner in owners):
            found.add(f"{entry.name} {text[-60:]!r}")
    return found


def _spaces(space):
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(entry / "ns" / space))
        except OSError:
            continue
    return found


def holder(name):
    """A process that holds a namespace, for people to read; empty for other names."""
    space = name.partition(":")[0]
    for entry in Path("/proc").glob("[0-9]*") if space in SPACES else ():
        try:
            if os.readlink(entry / "ns" / space) == name:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                return f"held by {entry.name}: {words[:100].decode('utf-8', 'replace')}"
        except OSError:
            continue
    return ""
