"""The native backend: namespaces, control groups and a system-call filter, without a daemon.

A *spawn server* (`box.c`, or `launcher.py` where there is no compiler) forks a *supervisor* into
fresh namespaces for every sandbox; the supervisor is PID 1 inside, carries out the plan of
`layout.py` and starts commands that this module asks for over a socket of its own. Everything
inside dies with the supervisor, every supervisor with the server, the server with this process.

What a host cannot enforce is refused by name (`IsolationError.missing`); `allow_weaker=True` goes
on without it and says so in `NativeSandbox.missing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Literal

from quintain.errors import (
    CapabilityError,
    ConfigError,
    IsolationError,
    SandboxError,
    SandboxTimeout,
)
from quintain.protocols import Probe
from quintain.sandbox import build, cgroups, host, landlock, layout, probe, wire, zygote
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.images.builder import BuildLimits
from quintain.sandbox.images.image import USERS, Image
from quintain.sandbox.images.library import Library
from quintain.sandbox.images.prepare import Images
from quintain.sandbox.link import Link
from quintain.sandbox.network import Proxy, prepare
from quintain.sandbox.network.resolve import Resolve
from quintain.sandbox.running import NativeSandbox
from quintain.sandbox.server import SpawnServer
from quintain.sandbox.snapshot import Snapshot
from quintain.task import SandboxSpec

log = logging.getLogger(__name__)

ANY_NUMBER, ANY_IDS = 99_999_998, (2_147_483_120, 2_147_483_121)
"""Stand for a sandbox's own number and host ids in the plan of its kind; as long as those."""
MANY_FILES = 65_536
WEAKER = (
    "Where namespaces are forbidden there is a weaker tier, if that is acceptable: "
    "the backend 'weak' with SandboxSpec(isolation=\"weak\")"
)


class NativeBackend:
    """Opens native sandboxes.

    Args:
        allow_weaker: go on where a limit cannot be enforced, instead of refusing by name.
        launcher: "c" (needs a C compiler once), "python", or "auto": C where it can be compiled.
        resolve: gives networked sandboxes the addresses of a name; None: the host's resolver.
        build: what a build of an image may use, and how long it may take.
    """

    name = "native"

    def __init__(
        self,
        *,
        allow_weaker: bool = False,
        launcher: Literal["auto", "c", "python"] = "auto",
        resolve: Resolve | None = None,
        build: BuildLimits | None = None,
    ) -> None:
        self.allow_weaker = allow_weaker
        self.resolve = resolve
        self.launcher = launcher
        self.landlock = True
        """Whether the second layer is put up where the kernel has it."""
        self.build = build or BuildLimits()
        self._images: Images | None = None
        self._unmapped: dict[str, str] = {}
        """Images whose owners this host refused to show, by their keys, and why."""
        self._host: host.Host | None = None
        self._servers: dict[asyncio.AbstractEventLoop, SpawnServer] = {}
        self._templates: dict[tuple[object, ...], SpawnServer] = {}
        self._starting = asyncio.Lock()
        self._numbers = 0
        self._started = 0
        self._closed = False

    async def open(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> NativeSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`.

        An image that the spec asks for is built now if nobody prepared it.

        Args:
            spec: what it holds and may use.
            snapshot: what another sandbox had written; its base must be the spec's.

        Raises:
            ConfigError: the snapshot was taken from another base.
        """
        here = self._look()
        _refuse_unknown(spec)
        if snapshot is not None and not snapshot.fits(spec):
            raise ConfigError("a snapshot fits sandboxes on the base that it was taken from")
        return await self._open(here, spec, await self.prepare(spec), snapshot)

    async def warm(self, spec: SandboxSpec, modules: Sequence[str] = ()) -> NativeSandbox:
        """A fresh sandbox forked from an interpreter with modules imported; see `zygote.py`.

        It has the capability "zygote": `run_python` starts in a fork, with the modules there.
        The first call for a base and modules takes as long as their import does.

        Raises:
            CapabilityError: there is no C compiler for the helper.
            SandboxError: a module cannot be imported, or starts threads.
        """
        here = self._look()
        _refuse_unknown(spec)
        return await self._open(here, spec, await self.prepare(spec), modules=tuple(modules))

    async def prepare(self, spec: SandboxSpec) -> Image | None:
        """Finds or builds the image of a spec, so that sandboxes of it open at once.

        A build has its own deadline (`BuildLimits.wall_s`), not the spec's `startup_s`. Builds of
        one image by several tasks and processes happen once.

        Raises:
            BuildError: it cannot be built; names the step and ends with its output.
            ConfigError: there is no such image, or the recipe is wrong.
        """
        refuse_closed(self.name, self._closed)
        here = self._look()
        if self._images is None:
            self._images = Images(Library(rootless=here.rootless), self._open_build, self.build)
        return await self._images.of(spec)

    async def _open(
        self,
        here: host.Host,
        spec: SandboxSpec,
        image: Image | None,
        snapshot: Snapshot | None = None,
        workshop: layout.Workshop | None = None,
        modules: tuple[str, ...] | None = None,
    ) -> NativeSandbox:
        if image is not None and workshop is None:
            await asyncio.to_thread(image.refuse_without_programs)
        spec = image.settle(spec) if image is not None else spec
        self._refuse_missing(missing := self._missing(here, spec, image))
        await prepare(spec.network)  # asks for what its presets need, once
        try:
            link, ids = await self.link(spec, snapshot, image, workshop, modules)
        except _UnmappedError as error:
            assert image is not None
            self._unmapped[image.key] = str(error)
            self._refuse_missing(missing := self._missing(here, spec, image))
            link, ids = await self.link(spec, snapshot, image, workshop, modules)
        sandbox = NativeSandbox(spec, link, ids, missing, self, image)
        sandbox.groups = self.groups_of(link)
        if snapshot is not None:
            sandbox.capabilities = sandbox.capabilities - {"reset"}
        if modules is not None:
            # Whatever gives it another first process would not have it from the template.
            sandbox.capabilities = sandbox.capabilities - {"reset", "snapshot", "fork"} | {"zygote"}
        try:
            async with asyncio.timeout(spec.startup_s):
                await sandbox.let_out()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    @contextlib.asynccontextmanager
    async def _open_build(
        self, spec: SandboxSpec, image: Image, workshop: layout.Workshop
    ) -> AsyncIterator[NativeSandbox]:
        """The sandbox of a build, on a server of its own, which goes with it."""
        backend = NativeBackend(
            allow_weaker=self.allow_weaker, launcher=self.launcher, resolve=self.resolve
        )
        try:
            sandbox = await backend._open(backend._look(), spec, image, workshop=workshop)
            try:
                yield sandbox
            finally:
                await sandbox.close()
        finally:
            await backend.close()

    def groups_of(self, link: Link) -> dict[str, str]:
        """Controller to the folder of a sandbox's control group, as this process sees it."""
        return {
            controller: f"{place}/{link.server.name}/{link.number:08d}"
            for controller, place in self._look().groups.folders.items()
        }

    async def link(
        self,
        spec: SandboxSpec,
        snapshot: Snapshot | None,
        image: Image | None = None,
        workshop: layout.Workshop | None = None,
        modules: tuple[str, ...] | None = None,
    ) -> tuple[Link, layout.Ids]:
        """A supervisor for a sandbox, and whose ids it has; what is missing was told before."""
        here = self._look()
        if modules is None:
            server = await self._server(here)
            return await self._link(here, server, spec, snapshot, image, workshop)
        server = await self._template(here, spec, image, modules)
        try:
            return await self._link(here, server, spec, None, image, None, nested=True)
        except SandboxError:
            if server.alive():
                raise
            # The template had died: another one is made, once.
            server = await self._template(here, spec, image, modules)
            return await self._link(here, server, spec, None, image, None, nested=True)

    async def _link(
        self,
        here: host.Host,
        server: SpawnServer,
        spec: SandboxSpec,
        snapshot: Snapshot | None,
        image: Image | None,
        workshop: layout.Workshop | None,
        *,
        nested: bool = False,
    ) -> tuple[Link, layout.Ids]:
        self._numbers += 1
        ids = replace(self._ids(here, self._numbers, spec, image, workshop), nested=nested)
        fill = None if snapshot is None else functools.partial(snapshot.fill, ids=ids)
        plan = self._plan(here, server, spec, ids, self._numbers, fill is not None, image, workshop)
        link = Link(server, self._numbers)
        try:
            await link.start(plan, spec.startup_s, fill)
        except TimeoutError as error:
            await link.close()
            raise SandboxTimeout(f"the sandbox was not up within {spec.startup_s} s") from error
        except SandboxError:
            await link.close()
            raise
        except OSError as error:
            await link.close()
            if ids.ranged and str(error.strerror).startswith("idmap"):
                raise _UnmappedError(
                    "the owners of an image's files need id-mapped mounts (Linux 5.19, on ext4, "
                    f"xfs, btrfs or tmpfs), which this host refused ({error})"
                ) from error
            raise _explain(error, here) from error
        except BaseException:
            await link.close()
            raise
        return link, ids

    async def probe(self) -> Probe:
        """Opens a sandbox and attacks it; says what holds, and what to do about the rest."""
        here = self._host or host.look()
        missing = {} if here.blocked else self._missing(here, probe.SPEC)
        advice = here.advice
        if missing and not advice:
            advice = (
                "run as root, or under a service manager that delegates control groups "
                "(systemd-run --user --scope -p Delegate=yes), or go on with --allow-weaker"
            )
        weaker = NativeBackend(allow_weaker=True, launcher=self.launcher)
        try:
            program = [] if here.blocked else await asyncio.to_thread(self._program)
            details = {
                "launcher": "python" if "-m" in program else "c" if program else "",
                "user": "ordinary" if here.rootless else "root",
                "control_groups": here.groups.version,
                "landlock": landlock.version(),
                "second_layer": ", ".join(landlock.layers(landlock.version()))
                or "none: this kernel has no Landlock of version 2 or newer, or it is switched off",
            }
            return await probe.probe(weaker, missing, advice, details)
        finally:
            await weaker.close()

    async def close(self) -> None:
        """Ends every sandbox of this backend and its spawn servers."""
        self._closed = True
        servers = [*self._servers.values(), *self._templates.values()]
        self._servers, self._templates = {}, {}
        images, self._images = self._images, None
        for server in servers:
            await self._bury(server, self._look())
        if images is not None:
            images.close()

    def _look(self) -> host.Host:
        if self._host is None:
            self._host = host.look()
        if self._host.blocked:
            advice = f" Try: {self._host.advice}." if self._host.advice else ""
            raise IsolationError(
                f"no native sandbox here: {self._host.blocked}.{advice} {WEAKER}", ("namespaces",)
            )
        return self._host

    def _missing(
        self, here: host.Host, spec: SandboxSpec, image: Image | None = None
    ) -> dict[str, str]:
        missing = {
            {"cpu": "cpus"}.get(name, name): why for name, why in here.groups.missing.items()
        }
        if here.rootless:
            missing.pop("pids", None)
        if spec.isolation in ("gvisor", "microvm"):
            missing[spec.isolation] = "the native backend isolates by namespaces"
        if image is not None and image.key in self._unmapped:
            missing["owners"] = self._unmapped[image.key]
        return missing

    def _refuse_missing(self, missing: dict[str, str]) -> None:
        if missing and not self.allow_weaker:
            listed = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise IsolationError(
                f"this host cannot enforce {listed}. "
                "Run as root or with delegated control groups, use a container backend, "
                "or accept it with allow_weaker=True (--allow-weaker)",
                tuple(missing),
            )

    def _plan(
        self,
        here: host.Host,
        server: SpawnServer,
        spec: SandboxSpec,
        ids: layout.Ids,
        number: int,
        fill: bool,
        image: Image | None,
        workshop: layout.Workshop | None,
    ) -> bytes:
        """The plan of one sandbox: that of its kind, which is kept, with its own numbers put in."""
        kind = (image and image.key, spec.memory_mb, spec.disk_mb, spec.max_pids, spec.cpus,
                spec.user, spec.workdir, _listens(spec), fill, ids.nested, ids.ranged)  # fmt: skip
        own = not (ids.rootless or ids.ranged)
        found = server.plans.get(kind)
        if found is None:
            any_ids = replace(ids, init=ANY_IDS[0], user=ANY_IDS[1], group=ANY_IDS[1])
            plan = wire.Plan()
            cgroups.limit(plan, here.groups, server.name, ANY_NUMBER, spec, layout.HOST)
            layout.box_plan(
                plan,
                spec,
                any_ids if own else ids,
                grouped="memory" in here.groups.folders,
                fill=fill,
                landlock=landlock.version() if self.landlock else 0,
                image=image,
                workshop=workshop,
            )
            found = bytes(plan.data)
            if workshop is None:
                server.plans[kind] = found
        found = found.replace(f"/{ANY_NUMBER:08d}".encode(), f"/{number:08d}".encode())
        if own:
            for any_id, id_ in zip(ANY_IDS, (ids.init, ids.user), strict=True):
                found = found.replace(str(any_id).encode(), str(id_).encode())
                found = found.replace(any_id.to_bytes(4, "little"), id_.to_bytes(4, "little"))
        return found

    def _ids(
        self,
        here: host.Host,
        number: int,
        spec: SandboxSpec,
        image: Image | None,
        workshop: layout.Workshop | None,
    ) -> layout.Ids:
        user = USERS[spec.user] if image is None else image.user(spec.user)
        if here.rootless:
            # One id: everything inside belongs to this user, whatever it is called.
            uid, gid = (user.uid, user.gid) if workshop or user.uid else (layout.USER_UID,) * 2
            return layout.Ids(True, 0, 0, 0, uid, gid)
        if image is not None and image.key not in self._unmapped:
            if not (user.uid < layout.RANGE and user.gid < layout.RANGE):
                raise ConfigError(f"user {spec.user!r}: ids go up to {layout.RANGE - 1}")
            first = layout.first_id()
            host_ids = (first, first + user.uid, first + user.gid)
            return layout.Ids(False, *host_ids, user.uid, user.gid, ranged=True)
        if user.uid not in (layout.INIT_UID, layout.USER_UID):
            why = self._unmapped.get(image.key if image is not None else "", "it has two ids")
            raise IsolationError(f"user {spec.user!r}: {why}", ("owners",))
        first = layout.pairs()[0] + number % (layout.pairs()[1] // 2) * 2
        return layout.Ids(False, first, first + 1, first + 1, user.uid, user.uid)

    async def _server(self, here: host.Host) -> SpawnServer:
        loop = asyncio.get_running_loop()
        async with self._starting:
            server = self._servers.get(loop)
            if server is not None and server.alive():
                return server
            if server is not None:
                await self._bury(self._servers.pop(loop), here)
            for other in [loop for loop in self._servers if loop.is_closed()]:
                self._servers.pop(other).hang_up()
            self._servers[loop] = server = await self._start_server(here)
            return server

    async def _start_server(self, here: host.Host) -> SpawnServer:
        self._started += 1
        name = f"{cgroups.owner_name()}.{id(self):x}.{self._started}"
        await asyncio.to_thread(cgroups.sweep, here.groups)
        plan = layout.stage_plan(rootless=here.rootless)
        cgroups.stage(plan, here.groups, name, layout.HOST)
        _allow_many_files()
        argv = await asyncio.to_thread(self._program)
        path = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            server = await SpawnServer.start(argv, plan, {"PYTHONPATH": path})
        except SandboxError:
            raise
        except OSError as error:
            raise _explain(error, here) from error
        server.name = name
        server.proxy = Proxy(resolve=self.resolve)
        return server

    async def _template(
        self, here: host.Host, spec: SandboxSpec, image: Image | None, modules: tuple[str, ...]
    ) -> SpawnServer:
        """The server whose sandboxes are forked from an interpreter with these modules."""
        if self.launcher == "python" or (library := await asyncio.to_thread(build.library)) is None:
            raise CapabilityError(
                "sandboxes are forked from an interpreter by the C helper only: install a C "
                "compiler, and use launcher='auto' or 'c'"
            )
        loop = asyncio.get_running_loop()
        key = (loop, image and image.key, tuple(sorted(spec.env.items())), modules)
        async with self._starting:
            server = self._templates.get(key)
            if server is not None and server.alive():
                return server
            if server is not None:
                await self._bury(self._templates.pop(key), here)
            ids = replace(self._ids(here, 0, spec, image, None), nested=True)
            body = zygote.request(spec, image, modules, ids, library.read_bytes(), self._started)
            server = await self._start_server(here)
            try:
                await server.template(body, spec.startup_s)
            except TimeoutError as error:
                await self._bury(server, here)
                raise SandboxTimeout(
                    f"the template with {', '.join(modules) or 'no modules'} was not ready within "
                    f"{spec.startup_s} s (startup_s)"
                ) from error
            except OSError as error:
                await self._bury(server, here)
                raise SandboxError(f"no template for sandboxes: {error.strerror}") from error
            except BaseException:
                await self._bury(server, here)
                raise
            self._templates[key] = server
            return server

    async def _bury(self, server: SpawnServer, here: host.Host) -> None:
        await server.close()
        await asyncio.to_thread(cgroups.remove, here.groups, server.name)

    def _program(self) -> list[str]:
        found = build.helper() if self.launcher != "python" else None
        if found is not None:
            return [str(found)]
        if self.launcher == "c":
            raise IsolationError(
                "launcher='c' was asked for, and the helper cannot be compiled here: install a C "
                "compiler, or use launcher='auto'",
                ("c launcher",),
            )
        return [sys.executable, "-m", "quintain.sandbox.launcher"]


def _listens(spec: SandboxSpec) -> int:
    """How long the queue at its way out is; 0: it has none."""
    return spec.network.max_connections if spec.network.mode != "none" else 0


def _allow_many_files() -> None:
    """Every open sandbox and every running command takes a few descriptors of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse_unknown(spec: SandboxSpec) -> None:
    if spec.user not in USERS and spec.image is None and not spec.needs_build:
        raise CapabilityError(
            f"user {spec.user!r}: without an image the native sandbox knows 'sandbox' and 'root'"
        )


class _UnmappedError(SandboxError):
    """The host refused an id-mapped mount."""


def _explain(error: OSError, here: host.Host) -> SandboxError:
    what = f"{error.strerror} ({os.strerror(error.errno or 0)})"
    if error.errno in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOSYS):
        advice = here.advice or "run as root on a host (not in a container without privileges)"
        return IsolationError(
            f"this host refused a wall of the native sandbox: {what}. Try: {advice}; "
            f"or use a container backend. {WEAKER}",
            ("namespaces",),
        )
    return SandboxError(f"the sandbox did not come up: {what}")
