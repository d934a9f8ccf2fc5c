"""Firecracker's own jailer: its arguments, and the folder it makes a root of. Unverified.

The jailer copies the program into `<base>/<program>/<id>/root`, and what the guest needs must lie
there too: hard links where that can be done. After its change of user the kernel's parent-death
signal is void, so a machine may outlive a killed owner until the next owner's sweep: every folder
names its owner, and the process writes down who it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import SandboxError
from quintain.sandbox import cgroups

SOCKET = "/run/firecracker.socket"
"""Of the API, below the root."""
DESCRIPTORS = 256
LONGEST_PATH = 107
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_NAME = "quintain-fc-"


@dataclass(frozen=True, slots=True)
class Cell:
    """One jailed Firecracker's place."""

    base: Path
    program: str
    name: str

    @property
    def root(self) -> Path:
        """What the process sees as `/`."""
        return self.base / os.path.basename(self.program) / self.name / "root"

    def arguments(self, jailer: str, uid: int, limits: Sequence[str], version: int) -> list[str]:
        """The jailer's command line.

        Args:
            jailer: the program.
            uid: whom the process becomes; the group too.
            limits: `file=value` of control groups.
            version: of control groups, 1 or 2; 0: none.
        """
        if not _ID.fullmatch(self.name):
            raise ValueError(f"a jailer's id is 1 to 64 letters, digits and '-': {self.name!r}")
        found = [jailer, "--id", self.name, "--exec-file", self.program]
        found += ["--uid", str(uid), "--gid", str(uid), "--chroot-base-dir", str(self.base)]
        found += ["--resource-limit", f"no-file={DESCRIPTORS}"]
        if version:
            found += ["--cgroup-version", str(version)]
        for limit in limits if version else ():
            found += ["--cgroup", limit]
        return [*found, "--", "--api-sock", SOCKET]

    def give(self, file: Path, uid: int) -> str:
        """Puts a file into the root, readable for the process; its path there."""
        self.root.mkdir(parents=True, exist_ok=True)
        target = self.root / file.name
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)
            with contextlib.suppress(PermissionError):
                os.chown(target, uid, uid)
        return f"/{file.name}"

    def take(self, file: Path, uid: int) -> None:
        """Moves a file into the root, for the process alone."""
        self.root.mkdir(parents=True, exist_ok=True)
        target = self.root / file.name
        os.replace(file, target)
        os.chown(target, uid, uid)

    def claim(self, pid: int) -> None:
        """Writes down which process lives here."""
        (self.base / "process").write_text(f"{pid} {cgroups.start_time(pid)}")

    def remove(self) -> None:
        """Removes everything; the process is gone."""
        shutil.rmtree(self.base, ignore_errors=True)


def limits(version: int, memory_mb: int, quota_us: int, period_us: int, threads: int) -> list[str]:
    """Settings of control groups, as the jailer takes them."""
    if version == 2:
        return [
            f"memory.max={memory_mb << 20}",
            f"cpu.max={quota_us} {period_us}",
            f"pids.max={threads}",
        ]
    return [
        f"memory.limit_in_bytes={memory_mb << 20}",
        f"cpu.cfs_quota_us={quota_us}",
        f"pids.max={threads}",
    ]


def cell(program: str, number: int) -> Cell:
    """A new place, whose name says who owns it."""
    owner = cgroups.owner_name().removeprefix(cgroups.PREFIX)
    base = tempfile.mkdtemp(prefix=f"{_NAME}{owner}.")
    found = Cell(Path(base), program, f"q-{number}")
    if len(f"{found.root}{SOCKET}") > LONGEST_PATH:
        found.remove()
        raise SandboxError(
            f"the path of a socket would be longer than {LONGEST_PATH} bytes below "
            f"{tempfile.gettempdir()}: set TMPDIR to a shorter folder"
        )
    return found


def sweep() -> list[str]:
    """Ends what dead owners left, and removes its folders; returns those."""
    removed = []
    for base in Path(tempfile.gettempdir()).glob(f"{_NAME}*"):
        owner = cgroups.PREFIX + base.name.removeprefix(_NAME)
        if cgroups.is_alive(owner) or base.stat().st_uid != os.geteuid():
            continue
        with contextlib.suppress(OSError, ValueError):
            pid, start = (base / "process").read_text().split()
            if cgroups.alive(pid, start):
                os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(base, ignore_errors=True)
        removed.append(str(base))
    return removed
