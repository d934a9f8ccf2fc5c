"""One QEMU process: its arguments, its jail, its monitor, its end.

The machine has no device but a serial console, one virtio-serial port and its read-only disks; no
network. The process runs in the jail of `jail.c` under QEMU's own system-call filter, and talks to
its owner over inherited sockets, so nothing of it lies in the file system. It dies with its owner.

QEMU's `microvm` machine needs a clock that the host gives (KVM); under emulation a kernel without
virtio-mmio on its command line finds no timer there, so emulated guests get a bare `q35`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quintain.errors import IsolationError, SandboxError
from quintain.sandbox.microvm.guest import Guest
from quintain.sandbox.microvm.monitor import Monitor
from quintain.sandbox.microvm.process import Process

Accelerator = Literal["kvm", "tcg"]
PROGRAM = "qemu-system-x86_64"
MACHINES = {
    "microvm": "microvm,acpi=on,rtc=on",
    "q35": "q35,smm=off,sata=off,smbus=off,vmport=off,usb=off,graphics=off",
}
COMMAND_LINE = "console=ttyS0 quiet panic=-1 reboot=t,force"
FILTER = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
END_S = 10.0
DESCRIPTORS = 256
TRANSLATION_MB = 128
"""Of generated code that an emulated guest may keep."""
_LINKED = ("/bin", "/sbin", "/lib", "/lib64")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a guest has; two of equal hardware can take each other's snapshots."""

    accelerator: Accelerator
    machine: str
    kernel: Path
    initial_disk: Path
    disks: tuple[Path, ...]
    memory_mb: int
    processors: int

    def arguments(self) -> list[str]:
        """The arguments of QEMU, without the sockets."""
        mmio = self.machine == "microvm"
        accelerator = "kvm" if self.accelerator == "kvm" else f"tcg,tb-size={TRANSLATION_MB}"
        found = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        found += ["-S", "-M", MACHINES[self.machine], "-accel", accelerator]
        found += ["-cpu", "host" if self.accelerator == "kvm" else "max"]
        found += ["-m", str(self.memory_mb), "-smp", str(self.processors), "-sandbox", FILTER]
        found += ["-kernel", str(self.kernel), "-initrd", str(self.initial_disk)]
        found += ["-append", COMMAND_LINE, "-serial", "stdio"]
        found += ["-device", "virtio-serial-device" if mmio else "virtio-serial-pci"]
        found += ["-device", "virtserialport,chardev=agent,name=agent"]
        for number, disk in enumerate(self.disks):
            name = f"disk{number}"
            file = f"driver=file,filename={disk},read-only=on,locking=off,node-name={name}"
            kind = "virtio-blk-device" if mmio else "virtio-blk-pci"
            found += ["-blockdev", file, "-device", f"{kind},drive={name}"]
        return found

    def files(self) -> list[Path]:
        """What the process must be able to read."""
        return [self.kernel, self.initial_disk, *self.disks]


@dataclass(frozen=True, slots=True)
class Jail:
    """How the process is confined."""

    program: Path
    uid: int
    """Its own; 0: the owner's, in a user namespace."""
    groups: tuple[str, ...] = ()
    """Files of control groups that it joins."""


class Machine:
    """A running QEMU; made by `start`."""

    def __init__(self, process: Process, monitor: Monitor, guest: Guest) -> None:
        self.process, self.monitor, self._guest = process, monitor, guest
        process.gone.add_done_callback(lambda gone: guest.lose(f"QEMU ended ({gone.result()})"))

    @property
    def guest(self) -> Guest:
        """The connection to its agent."""
        return self._guest

    @classmethod
    async def start(
        cls, hardware: Hardware, jail: Jail, state: int = -1, first: int = 1
    ) -> Machine:
        """Starts QEMU with its processors stopped.

        Args:
            hardware: of the guest.
            jail: of the process.
            state: a descriptor of a saved state to begin with; -1: none.
            first: id of the first request to its agent.

        Raises:
            IsolationError: QEMU is not installed, or the jail cannot be built.
            SandboxError: it did not start.
        """
        agent, their_agent = socket.socketpair()
        control, their_control = socket.socketpair()
        with their_agent, their_control, contextlib.ExitStack() as stack:
            stack.enter_context(agent)
            stack.enter_context(control)
            given = [their_agent.fileno(), their_control.fileno()]
            arguments = [program(), *hardware.arguments()]
            arguments += ["-chardev", f"socket,id=agent,fd={given[0]}"]
            arguments += ["-chardev", f"socket,id=control,fd={given[1]}"]
            arguments += ["-mon", "chardev=control,mode=control"]
            if state >= 0:
                given.append(state)
                arguments += ["-incoming", f"fd:{state}"]
            guest = await Guest.connect(agent, first)
            process = Process([*_jailed(hardware, jail), *arguments], given)
            stack.pop_all()
        machine = cls(process, Monitor(control), guest)
        try:
            await machine.monitor.greet()
        except BaseException as error:
            await machine.end()
            if isinstance(error, Exception):
                raise machine.explain(error) from error
            raise
        return machine

    def explain(self, error: Exception) -> SandboxError:
        """The error with what the machine said last."""
        said = " ".join(self.process.said.decode("utf-8", "replace").split())[-600:]
        what = str(error) or type(error).__name__
        if said.startswith("jail: "):
            return IsolationError(f"this host refused a wall of the microVM: {said}", ("jail",))
        return SandboxError(f"the virtual machine did not come up: {what}; it said: {said}")

    async def end(self) -> None:
        """Kills it; may be called twice."""
        self.process.kill()
        self.monitor.close()
        await self.guest.close()
        done, _ = await asyncio.wait([self.process.gone], timeout=END_S)
        if not done:
            raise SandboxError(f"QEMU was not gone {END_S} s after it was killed")


def program() -> str:
    """Where QEMU is.

    Raises:
        IsolationError: it is not installed.
    """
    found = shutil.which(PROGRAM)
    if found is None:
        raise IsolationError(
            f"no {PROGRAM} on the PATH (Debian: apt-get install qemu-system-x86)", ("qemu",)
        )
    return os.path.realpath(found)


def _jailed(hardware: Hardware, jail: Jail) -> list[str]:
    argv = [str(jail.program), str(os.getpid()), str(jail.uid)]
    for group in jail.groups:
        argv += ["-g", group]
    for path in ["/usr", *(name for name in _LINKED if not os.path.islink(name))]:
        if os.path.isdir(path):
            argv += ["-r", path]
    for file in [*hardware.files(), Path("/etc/ld.so.cache"), Path(program())]:
        if file.is_file() and not str(file).startswith("/usr/"):
            argv += ["-r", str(file)]
    devices = ["/dev/null", "/dev/urandom"]
    if hardware.accelerator == "kvm":
        devices.append("/dev/kvm")
    for path in devices:
        argv += ["-d", path]
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, DESCRIPTORS)):
        argv += ["-l", str(kind), str(most)]
    return [*argv, "--"]
