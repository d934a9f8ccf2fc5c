"""Snapshots of booted guests, from which sandboxes start.

A guest is booted once per kind (hardware, steps, QEMU), warmed with a shell and a Python, stopped,
and its state written to the cache. Each sandbox then is a QEMU that begins with that state. What
must not be shared is made new after the restore: the agent takes fresh entropy and the time before
anything runs. Where the kernel put itself in memory is shared by all guests of a kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from quintain.record import digest
from quintain.sandbox import build
from quintain.sandbox.microvm.frames import STEP
from quintain.sandbox.microvm.guest import Guest
from quintain.sandbox.microvm.layout import OPTIONAL, Step
from quintain.sandbox.microvm.machine import Hardware, program

KEPT = 12
"""States in the cache; the longest unused go."""
WARM = "python3 -c 'import json, os, subprocess' </dev/null || true"
WARM_MS = 120_000
SUPERBLOCK_BYTES = 96
"""Of a squashfs: when it was made, and where its parts lie."""


def folder() -> Path:
    """Where they lie."""
    return build.cache_folder().parent / "microvm" / "templates"


def path(hardware: Hardware, steps: Sequence[Step]) -> Path:
    """Where the state of such a guest is, or will be."""
    qemu = os.stat(program())
    parts = [hardware.accelerator, hardware.machine, str(hardware.memory_mb)]
    parts += [str(hardware.processors), str(qemu.st_size), str(qemu.st_mtime_ns), WARM]
    kernel = os.stat(hardware.kernel)
    parts += [str(hardware.kernel), str(kernel.st_size), str(kernel.st_mtime_ns)]
    # What is in the cache is named by what it holds, and its time of change says when it was used.
    # A disk may have been made again of the same, though, and lie otherwise: its head tells.
    parts += [str(hardware.initial_disk)]
    for disk in hardware.disks:
        with open(disk, "rb") as file:
            parts += [str(disk), str(os.stat(disk).st_size), file.read(SUPERBLOCK_BYTES).hex()]
    if hardware.accelerator == "kvm":
        parts.append(Path("/proc/cpuinfo").read_text().split("\n\n")[0])
    flat = [repr(step) for step in steps]
    return folder() / f"{digest(*parts, *flat)}.state"


async def build_root(guest: Guest, steps: Sequence[Step]) -> None:
    """Carries out the steps in a guest that has just booted.

    Raises:
        OSError: the guest refused one; the message says which.
    """
    for name, *values in steps:
        text = str(name)
        try:
            await guest.call(STEP, [text.removeprefix(OPTIONAL), *values])
        except OSError as error:
            if not text.startswith(OPTIONAL):
                shown = " ".join(
                    str(value)[:60] for value in values if not isinstance(value, bytes)
                )
                raise OSError(error.errno, f"{error.strerror} at {text} {shown}") from error


async def warm(guest: Guest) -> None:
    """Runs a shell and a Python once, so that their files are in the guest's memory."""
    env = ["PATH=/opt/python/bin:/usr/local/bin:/usr/bin:/bin"]
    argv = ["/bin/sh", "-c", WARM]
    running = await guest.execute(
        argv, env=env, cwd="/", uid=1000, gid=1000, limit_ms=WARM_MS, most=1000
    )
    try:
        async with asyncio.timeout(WARM_MS / 1000 + 30):
            await running.ended
    finally:
        guest.forget(running.number)


def draft() -> tuple[Path, int]:
    """A new file for a state, to be renamed; its path and a descriptor."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = place / f"draft-{os.getpid()}-{time.monotonic_ns()}"
    return name, os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def prune() -> None:
    """Removes what dead makers left, and the longest unused beyond `KEPT`."""
    for file in folder().glob("draft-*"):
        owner = file.name.split("-")[1]
        if not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                file.unlink()
    ages = []
    for file in folder().glob("*.state"):
        with contextlib.suppress(OSError):
            ages.append((file.stat().st_mtime, file))
    for _, file in sorted(ages)[:-KEPT]:
        with contextlib.suppress(OSError):
            file.unlink()
