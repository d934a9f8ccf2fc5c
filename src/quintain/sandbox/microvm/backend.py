"""The microVM backend: each sandbox is a small virtual machine under QEMU.

A kernel of its own stands between candidate and host; QEMU itself runs in a jail. Guests run under
KVM where one really boots, else emulated (TCG): slow, with the same walls. A guest is booted once
per kind of spec and kept as a snapshot, from which sandboxes start (`templates.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quintain.errors import (
    ConfigError,
    IsolationError,
    SandboxError,
    SandboxTimeout,
)
from quintain.protocols import Probe
from quintain.record import Json
from quintain.sandbox import cgroups, probe
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.images.builder import BuildLimits
from quintain.sandbox.images.image import Image
from quintain.sandbox.microvm import (
    archive,
    kernel,
    layers,
    layout,
    limits,
    templates,
)
from quintain.sandbox.microvm.accelerator import Answer, find
from quintain.sandbox.microvm.bases import Bases
from quintain.sandbox.microvm.machine import Accelerator, Hardware, Jail, Machine, program
from quintain.sandbox.microvm.sandbox import MicrovmSandbox
from quintain.sandbox.microvm.snapshot import MicrovmSnapshot
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.network import Proxy
from quintain.sandbox.network.resolve import Resolve
from quintain.task import SandboxSpec

EMULATED = 8.0
"""How many times longer an emulated guest may take to start than the spec says."""
FIRST_UID, UIDS = 0x68000000, 0x08000000


@dataclass(frozen=True, slots=True)
class _Kind:
    """What guests of one kind of spec have in common."""

    spec: SandboxSpec
    """As its image completes it."""
    image: Image
    hardware: Hardware
    steps: list[layout.Step]


class MicrovmBackend:
    """Opens microVMs.

    Args:
        allow_weaker: for builds of images, which run in native sandboxes; a guest is never weaker.
        accelerator: "kvm", "tcg" (emulation), or "auto": KVM where a guest boots under it.
        kernel: a folder with `vmlinuz` and `modules`; None: the one fetched by
            `python -m quintain.sandbox.microvm.kernel`.
        templates: start sandboxes from a snapshot of a booted guest; else boot each one.
        resolve: gives networked sandboxes the addresses of a name; None: the host's resolver.
        build: what a build of an image may use, and how long it may take.
    """

    name = "microvm"

    def __init__(
        self,
        *,
        allow_weaker: bool = False,
        accelerator: Literal["auto", "kvm", "tcg"] = "auto",
        kernel: str | os.PathLike[str] | None = None,
        templates: bool = True,
        resolve: Resolve | None = None,
        build: BuildLimits | None = None,
    ) -> None:
        self._closed = False
        self.allow_weaker = allow_weaker
        self.accelerator = accelerator
        self.kernel = kernel
        self.keep_templates = templates
        self.resolve = resolve
        self._proxies: dict[asyncio.AbstractEventLoop, Proxy] = {}
        self._answer: Answer | None = None
        self._preparing = asyncio.Lock()
        builder = NativeBackend(allow_weaker=allow_weaker, resolve=resolve, build=build)
        self._bases = Bases(builder)
        self._disks: dict[str, list[Path]] = {}
        self._jailer: Path | None = None
        self._open: set[MicrovmSandbox] = set()
        self._numbers = 0
        self._groups: cgroups.Groups | None = None
        self._name = f"{cgroups.owner_name()}.vm{id(self):x}"

    async def open(
        self, spec: SandboxSpec, *, snapshot: MicrovmSnapshot | None = None
    ) -> MicrovmSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`.

        Args:
            spec: what it holds and may use.
            snapshot: what another sandbox was; of the same image, limits and workdir.

        Raises:
            ConfigError: the snapshot was taken from another kind of machine.
        """
        refuse_closed(self.name, self._closed)
        async with self._preparing:
            kind = await self._prepare(spec)
            state = templates.path(kind.hardware, kind.steps)
            if snapshot is None and self.keep_templates and not state.is_file():
                await self._make_template(kind, state)
        if snapshot is not None:
            with _reading(snapshot, str(state)) as fd:
                return await self._opened(kind, fd, snapshot.first)
        if not self.keep_templates:
            return await self._opened(kind)
        fd = os.open(state, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.utime(state)
            return await self._opened(kind, fd)
        finally:
            os.close(fd)

    async def _opened(self, kind: _Kind, state: int = -1, first: int = 1) -> MicrovmSandbox:
        async with self._started(kind, state, first) as (machine, group):
            if state >= 0:
                await machine.monitor.loaded()
            await self._wake(machine, kind, restored=state >= 0)
            slowness = EMULATED if kind.hardware.accelerator == "tcg" else 1.0
            sandbox = MicrovmSandbox(
                kind.spec, machine, group, kind.image, self._forked, self, slowness
            )
            await sandbox.let_out(self._proxy())
        self._open.add(sandbox)
        sandbox.on_closed = self._open.discard
        return sandbox

    async def _forked(self, sandbox: MicrovmSandbox) -> MicrovmSandbox:
        machine = sandbox.machine
        assert isinstance(machine, Machine)
        async with self._preparing:
            kind = await self._prepare(sandbox.spec)
        with tempfile.TemporaryFile(prefix="quintain-vm-") as state:
            async with machine.guest.silence():
                await machine.monitor.save(state.fileno())
                await machine.monitor.do("cont")
            state.seek(0)
            return await self._opened(kind, state.fileno(), machine.guest.next + 1)

    async def snapshot(self, sandbox: MicrovmSandbox) -> MicrovmSnapshot:
        """The state of a sandbox's machine, taken while nothing in it moves."""
        machine = sandbox.machine
        assert isinstance(machine, Machine)
        async with self._preparing:
            kind = await self._prepare(sandbox.spec)
        found = hashlib.blake2b(digest_size=16)
        with tempfile.TemporaryFile(prefix="quintain-vm-") as state:
            async with machine.guest.silence():
                await machine.guest.written(found.update)
                await machine.monitor.save(state.fileno())
                await machine.monitor.do("cont")
            name = str(templates.path(kind.hardware, kind.steps))
            first = machine.guest.next + 1
            kept = os.dup(state.fileno())
        return MicrovmSnapshot(sandbox.spec, name, kept, found.hexdigest(), first)

    async def restore(self, sandbox: MicrovmSandbox, taken: MicrovmSnapshot) -> None:
        """Lets a sandbox go on from a snapshot, in a new machine."""
        sandbox.check()
        async with self._preparing:
            kind = await self._prepare(sandbox.spec)
        with _reading(taken, str(templates.path(kind.hardware, kind.steps))) as fd:
            async with self._started(kind, fd, taken.first) as (machine, group):
                await machine.monitor.loaded()
                await self._wake(machine, kind, restored=True)
        await sandbox.become(machine, group, self._proxy())

    def _proxy(self) -> Proxy:
        loop = asyncio.get_running_loop()
        if loop not in self._proxies:
            self._proxies[loop] = Proxy(resolve=self.resolve)
        return self._proxies[loop]

    async def probe(self) -> Probe:
        """Boots a guest and attacks from inside; says what holds, and how guests run here."""
        try:
            async with self._preparing:
                await self._prepare(probe.SPEC)
        except (SandboxError, OSError) as error:
            names = error.missing if isinstance(error, IsolationError) else ("microvm",)
            return Probe(
                backend=self.name,
                available=False,
                missing=dict.fromkeys(names, str(error)),
                advice=str(error),
            )
        answer = self._answer
        assert answer is not None
        details: dict[str, Json] = {
            "accelerator": answer.accelerator,
            "machine": answer.machine,
            "why_not_kvm": answer.why,
            "qemu_groups": (self._groups or cgroups.find()).version,
        }
        advice = "" if answer.accelerator == "kvm" else f"guests are emulated: {answer.why}"
        return await probe.probe(self, {}, advice, details, patience=EMULATED)

    async def close(self) -> None:
        """Ends every sandbox of this backend."""
        self._closed = True
        opened, self._open = self._open, set()
        await asyncio.gather(*(sandbox.close() for sandbox in opened))
        proxy = self._proxies.pop(asyncio.get_running_loop(), None)
        if proxy is not None:
            await proxy.close()
        await self._bases.close()
        if self._groups is not None:
            await asyncio.to_thread(cgroups.remove, self._groups, self._name)

    # --- preparation, once ----------------------------------------------------------------------

    async def _prepare(self, spec: SandboxSpec) -> _Kind:
        """What a guest of the spec has, and the steps that build its root."""
        if os.uname().machine != "x86_64":
            raise IsolationError("microVMs are built for x86_64 only", ("microvm",))
        if self._groups is None:
            self._groups = await asyncio.to_thread(cgroups.find)
            await asyncio.to_thread(cgroups.sweep, self._groups)
            await asyncio.to_thread(templates.prune)
        program()
        found = await asyncio.to_thread(kernel.find, self.kernel)
        agent, self._jailer = await asyncio.to_thread(archive.programs)
        initial = await asyncio.to_thread(archive.initial_disk, found, agent)
        answer = await self._accelerated(found.image, initial)
        image = await self._bases.of(spec)
        await asyncio.to_thread(image.refuse_without_programs)
        spec = image.settle(spec)
        disks = self._disks.get(image.key)
        if disks is None:
            disks = self._disks[image.key] = await asyncio.to_thread(layers.of, image)
        hardware = Hardware(
            accelerator=answer.accelerator,
            machine=answer.machine,
            kernel=found.image,
            initial_disk=initial,
            disks=tuple(disks),
            memory_mb=layout.memory_mb(spec),
            processors=layout.processors(spec),
        )
        return _Kind(spec, image, hardware, layout.steps(spec, image))

    async def _accelerated(self, image: Path, initial: Path) -> Answer:
        if self._answer is None and self.accelerator == "auto":
            self._answer = await find(image, initial, self._jail(self._number()))
        elif self._answer is None:
            chosen: Accelerator = "kvm" if self.accelerator == "kvm" else "tcg"
            machine = "microvm" if chosen == "kvm" else "q35"
            self._answer = Answer(chosen, machine, f"accelerator={chosen!r} was given")
        return self._answer

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _jail(self, number: int, groups: tuple[str, ...] = ()) -> Jail:
        assert self._jailer is not None
        if os.geteuid() != 0:
            return Jail(self._jailer, 0, groups)
        place = (os.getpid() % 32768) * 4096 + number % 4096
        return Jail(self._jailer, FIRST_UID + place % UIDS, groups)

    # --- machines -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _started(
        self, kind: _Kind, state: int = -1, first: int = 1
    ) -> AsyncIterator[tuple[Machine, limits.Group]]:
        """A machine that comes up within its time, and ends if anything inside fails."""
        assert self._groups is not None
        slower = EMULATED if kind.hardware.accelerator == "tcg" else 1.0
        limit_s, number = kind.spec.startup_s * slower, self._number()
        group = await asyncio.to_thread(
            limits.make, self._groups, self._name, number, kind.hardware
        )
        machine = None
        try:
            async with asyncio.timeout(limit_s):
                jail = self._jail(number, group.joins)
                machine = await Machine.start(kind.hardware, jail, state, first)
                yield machine, group
        except BaseException as error:
            if machine is not None:
                await machine.end()
            await asyncio.to_thread(group.remove)
            if isinstance(error, TimeoutError) and not isinstance(error, SandboxError):
                said = machine.explain(error) if machine is not None else error
                raise SandboxTimeout(f"not up within {limit_s:.0f} s: {said}") from error
            if isinstance(error, OSError | SandboxError) and not isinstance(error, IsolationError):
                raise machine.explain(error) if machine is not None else error from error
            raise

    async def _wake(self, machine: Machine, kind: _Kind, *, restored: bool) -> None:
        await machine.monitor.do("cont")
        if not restored:
            await machine.guest.greeted()
            await templates.build_root(machine.guest, kind.steps)
        await machine.guest.start()

    async def _make_template(self, kind: _Kind, target: Path) -> None:
        """Boots a guest of the kind, stops it and keeps its state."""
        draft, fd = templates.draft()
        try:
            async with self._started(kind) as (machine, group):
                await self._wake(machine, kind, restored=False)
                await templates.warm(machine.guest)
                await machine.monitor.save(fd)
            await machine.end()
            await asyncio.to_thread(group.remove)
            draft.replace(target)
        finally:
            os.close(fd)
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _reading(taken: MicrovmSnapshot, kind: str) -> Iterator[int]:
    """A descriptor of a snapshot for a machine of that kind."""
    if taken.kind != kind:
        raise ConfigError(
            "a microVM's snapshot fits machines of its own kind only: the same image, memory_mb, "
            "disk_mb, max_pids, cpus, workdir and user"
        )
    fd = taken.reader()
    try:
        yield fd
    finally:
        os.close(fd)
