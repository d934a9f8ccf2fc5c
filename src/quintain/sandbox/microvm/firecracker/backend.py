"""Sandboxes in Firecracker's microVMs. Unverified: see the package."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from quintain.errors import IsolationError, SandboxError, SandboxTimeout
from quintain.protocols import Probe
from quintain.sandbox import cgroups
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.images.image import Image
from quintain.sandbox.microvm import archive, kernel, layers, layout, limits, templates
from quintain.sandbox.microvm.bases import Bases
from quintain.sandbox.microvm.firecracker import jailer
from quintain.sandbox.microvm.firecracker.jailer import Cell
from quintain.sandbox.microvm.firecracker.machine import FirecrackerMachine, Hardware
from quintain.sandbox.microvm.sandbox import MicrovmSandbox
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.network import Proxy
from quintain.task import SandboxSpec

UNVERIFIED = "written to the published API and never run against a real Firecracker"
FIRST_UID, UIDS = 0x60000000, 0x08000000
KVM = "/dev/kvm"


class FirecrackerBackend:
    """Opens Firecracker microVMs (unverified).

    Args:
        allow_weaker: for builds of images, which run in native sandboxes; a guest is never weaker.
        program: Firecracker; its name must hold the word.
        jailer: its jailer, which must run as root.
        kernel: a folder with an uncompressed `vmlinux` and `modules`; see `microvm/kernel.py`.
    """

    name = "firecracker"

    def __init__(
        self,
        *,
        allow_weaker: bool = False,
        program: str = "firecracker",
        jailer: str = "jailer",
        kernel: str | os.PathLike[str] | None = None,
    ) -> None:
        self._closed = False
        self.allow_weaker = allow_weaker
        self.program, self.jailer, self.kernel = program, jailer, kernel
        self._bases = Bases(NativeBackend(allow_weaker=allow_weaker))
        self._open: set[MicrovmSandbox] = set()
        self._numbers = 0
        self._proxies: dict[asyncio.AbstractEventLoop, Proxy] = {}

    async def open(self, spec: SandboxSpec) -> MicrovmSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`."""
        refuse_closed(self.name, self._closed)
        image = await self._bases.of(spec)
        spec = image.settle(spec)
        hardware, steps = await asyncio.to_thread(self._prepare, spec, image)
        await asyncio.to_thread(jailer.sweep)
        cell, argv, uid = self._cell(hardware)
        machine: FirecrackerMachine | None = None
        try:
            async with asyncio.timeout(spec.startup_s):
                machine = await FirecrackerMachine.boot(cell, argv, hardware, uid)
                await templates.build_root(machine.guest, steps)
                return await self._ready(spec, machine, image)
        except BaseException as error:
            await self._undo(cell, machine)
            if isinstance(error, TimeoutError) and not isinstance(error, SandboxError):
                raise SandboxTimeout(f"not up within {spec.startup_s} s") from error
            if isinstance(error, OSError) and not isinstance(error, SandboxError):
                raise SandboxError(f"the microVM did not come up: {error}") from error
            raise

    async def _ready(
        self, spec: SandboxSpec, machine: FirecrackerMachine, image: Image
    ) -> MicrovmSandbox:
        await machine.guest.start()
        sandbox = MicrovmSandbox(spec, machine, limits.Group(), image, self._forked)
        loop = asyncio.get_running_loop()
        await sandbox.let_out(self._proxies.setdefault(loop, Proxy()))
        self._open.add(sandbox)
        sandbox.on_closed = self._open.discard
        return sandbox

    async def _forked(self, sandbox: MicrovmSandbox) -> MicrovmSandbox:
        source = sandbox.machine
        assert isinstance(source, FirecrackerMachine)
        hardware, _ = await asyncio.to_thread(self._prepare, sandbox.spec, sandbox.image)
        cell, argv, uid = self._cell(hardware)
        machine: FirecrackerMachine | None = None
        try:
            async with asyncio.timeout(sandbox.spec.startup_s):
                await source.save_into(cell, uid)
                first = source.guest.next + 1
                machine = await FirecrackerMachine.restore(cell, argv, hardware, uid, first)
                return await self._ready(sandbox.spec, machine, sandbox.image)
        except BaseException:
            await self._undo(cell, machine)
            raise

    async def _undo(self, cell: Cell, machine: FirecrackerMachine | None) -> None:
        if machine is not None:
            await machine.end()
        await asyncio.to_thread(cell.remove)

    async def probe(self) -> Probe:
        """Says what is missing; with everything there, that none of it was ever verified."""
        missing = {}
        try:
            await asyncio.to_thread(self._needs)
        except IsolationError as error:
            missing = dict.fromkeys(error.missing, str(error))
        except SandboxError as error:
            missing = {"firecracker": str(error)}
        why = "; ".join(missing.values())
        note = f"unverified on this host: {why}" if why else f"unverified: {UNVERIFIED}"
        return Probe(
            backend=self.name,
            available=not missing,
            missing={**missing, "verified": UNVERIFIED},
            advice=note,
        )

    async def close(self) -> None:
        """Ends every sandbox of this backend."""
        self._closed = True
        opened, self._open = self._open, set()
        await asyncio.gather(*(sandbox.close() for sandbox in opened))
        proxy = self._proxies.pop(asyncio.get_running_loop(), None)
        if proxy is not None:
            await proxy.close()
        await self._bases.close()

    def _needs(self) -> tuple[kernel.Kernel, Path]:
        """What must be there; the kernel, and its uncompressed image."""
        for name, place in (("firecracker", self.program), ("jailer", self.jailer)):
            if shutil.which(place) is None:
                raise IsolationError(f"no binary: {place} is not on the PATH", (name,))
        if os.geteuid() != 0:
            raise IsolationError("Firecracker's jailer runs as root only", ("root",))
        if not os.access(KVM, os.R_OK | os.W_OK):
            raise IsolationError(f"Firecracker needs KVM: {KVM} cannot be opened", ("kvm",))
        found = kernel.find(self.kernel, vsock=True)
        image = found.image.with_name("vmlinux")
        if not image.is_file():
            raise IsolationError(
                f"Firecracker boots an uncompressed kernel, and {image} is not there", ("kernel",)
            )
        return found, image

    def _prepare(self, spec: SandboxSpec, image: Image) -> tuple[Hardware, list[layout.Step]]:
        found, uncompressed = self._needs()
        agent, _ = archive.programs()
        processors = layout.processors(spec)
        hardware = Hardware(
            kernel=uncompressed,
            initial_disk=archive.initial_disk(found, agent),
            disks=tuple(layers.of(image)),
            memory_mb=layout.memory_mb(spec),
            processors=processors + processors % 2 if processors > 1 else 1,
        )
        return hardware, layout.steps(spec, image)

    def _cell(self, hardware: Hardware) -> tuple[Cell, list[str], int]:
        """A new place, the command that starts a process there, and its uid."""
        self._numbers += 1
        program = str(Path(shutil.which(self.program) or self.program).resolve())
        cell = jailer.cell(program, self._numbers)
        uid = FIRST_UID + ((os.getpid() % 32768) * 4096 + self._numbers % 4096) % UIDS
        version = cgroups.find().version
        settings = jailer.limits(
            version,
            hardware.memory_mb + limits.PROCESS_MB,
            int((hardware.processors + limits.SPARE_CPUS) * limits.PERIOD_US),
            limits.PERIOD_US,
            limits.THREADS,
        )
        guard = shutil.which(self.jailer) or self.jailer
        return cell, cell.arguments(guard, uid, settings, version), uid
