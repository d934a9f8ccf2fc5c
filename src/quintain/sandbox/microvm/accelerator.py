"""Whether this host really boots a guest under KVM, found out once per boot of the host.

That `/dev/kvm` opens says little: inside another virtual machine it may open and no guest comes up.
So a guest is booted, with a deadline, and the answer is kept in the cache under the host's boot id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import SandboxError
from quintain.sandbox import build
from quintain.sandbox.microvm.machine import Accelerator, Hardware, Jail, Machine, program

KVM = "/dev/kvm"
BOOT_S = 15.0
"""A guest under KVM is up in less than one second."""
MEMORY_MB = 192


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found."""

    accelerator: Accelerator
    machine: str
    """QEMU's machine: "microvm" or "q35"."""
    why: str
    """Why it is not KVM, or not the microvm machine; empty when it is."""


def _identity() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    qemu = os.stat(program())
    return f"{boot} {qemu.st_size} {qemu.st_mtime_ns} {os.geteuid()}"


async def find(kernel: Path, initial_disk: Path, jail: Jail) -> Answer:
    """How guests run here.

    Args:
        kernel: to try with.
        initial_disk: to try with.
        jail: for the process.
    """
    kept = build.cache_folder().parent / "microvm" / "accelerator.json"
    identity = _identity()
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(kept.read_text())
        if found.pop("identity") == identity:
            return Answer(**found)
    answer = await _try(kernel, initial_disk, jail)
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = kept.with_name(f"{kept.name}.{os.getpid()}")
    fields = {"accelerator": answer.accelerator, "machine": answer.machine, "why": answer.why}
    draft.write_text(json.dumps({"identity": identity, **fields}))
    draft.replace(kept)
    return answer


async def _try(kernel: Path, initial_disk: Path, jail: Jail) -> Answer:
    try:
        os.close(os.open(KVM, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Answer("tcg", "q35", f"{KVM}: {error.strerror}")
    reasons: list[str] = []
    for machine in ("microvm", "q35"):
        hardware = Hardware("kvm", machine, kernel, initial_disk, (), MEMORY_MB, 1)
        why = await boots(hardware, jail, BOOT_S)
        if not why:
            return Answer("kvm", machine, "; ".join(reasons))
        reasons.append(f"no guest of machine {machine} came up under KVM: {why}")
    return Answer("tcg", "q35", "; ".join(reasons))


async def boots(hardware: Hardware, jail: Jail, limit_s: float) -> str:
    """Boots a guest; why it did not come up, or nothing when it did."""
    machine = None
    try:
        async with asyncio.timeout(limit_s):
            machine = await Machine.start(hardware, jail)
            await machine.monitor.do("cont")
            await machine.guest.greeted()
            return ""
    except TimeoutError:
        return f"nothing within {limit_s:.0f} s"
    except SandboxError as error:
        return str(error)[:300]
    finally:
        if machine is not None:
            await machine.end()
