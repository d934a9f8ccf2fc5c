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
import errno
import functools
import logging
import os
import resource
import sys
from typing import Literal

from quintain.errors import (
    CapabilityError,
    ConfigError,
    IsolationError,
    SandboxError,
    SandboxTimeout,
)
from quintain.protocols import Probe
from quintain.sandbox import build, cgroups, host, landlock, layout, probe, wire
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


class NativeBackend:
    """Opens native sandboxes.

    Args:
        allow_weaker: go on where a limit cannot be enforced, instead of refusing by name.
        launcher: "c" (needs a C compiler once), "python", or "auto": C where it can be compiled.
        resolve: gives networked sandboxes the addresses of a name; None: the host's resolver.
    """

    name = "native"

    def __init__(
        self,
        *,
        allow_weaker: bool = False,
        launcher: Literal["auto", "c", "python"] = "auto",
        resolve: Resolve | None = None,
    ) -> None:
        self.allow_weaker = allow_weaker
        self.resolve = resolve
        self.launcher = launcher
        self.landlock = True
        """Whether the second layer is put up where the kernel has it."""
        self._host: host.Host | None = None
        self._servers: dict[asyncio.AbstractEventLoop, SpawnServer] = {}
        self._starting = asyncio.Lock()
        self._numbers = 0

    async def open(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> NativeSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`.

        Args:
            spec: what it holds and may use.
            snapshot: what another sandbox had written; its base must be the spec's.

        Raises:
            ConfigError: the snapshot was taken from another base.
        """
        here = self._look()
        _refuse_unbuilt(spec)
        missing = self._missing(here, spec)
        if missing and not self.allow_weaker:
            listed = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise IsolationError(
                f"this host cannot enforce {listed}. "
                "Run as root or with delegated control groups, use a container backend, "
                "or accept it with allow_weaker=True (--allow-weaker)",
                tuple(missing),
            )
        if snapshot is not None and not snapshot.fits(spec):
            raise ConfigError("a snapshot fits sandboxes on the base that it was taken from")
        await prepare(spec.network)  # asks for what its presets need, once
        link, ids = await self.link(spec, snapshot)
        sandbox = NativeSandbox(spec, link, ids, missing, self)
        sandbox.groups = self.groups_of(link)
        if snapshot is not None:
            sandbox.capabilities = sandbox.capabilities - {"reset"}
        try:
            async with asyncio.timeout(spec.startup_s):
                await sandbox.let_out()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def groups_of(self, link: Link) -> dict[str, str]:
        """Controller to the folder of a sandbox's control group, as this process sees it."""
        return {
            controller: f"{place}/{link.server.name}/{link.number:08d}"
            for controller, place in self._look().groups.folders.items()
        }

    async def link(self, spec: SandboxSpec, snapshot: Snapshot | None) -> tuple[Link, layout.Ids]:
        """A supervisor for a sandbox, and whose ids it has; what is missing was told before."""
        here = self._look()
        server = await self._server(here)
        self._numbers += 1
        ids = self._ids(here, self._numbers)
        plan = self._plan(here, server, spec, ids, self._numbers, snapshot is not None)
        link = Link(server, self._numbers)
        try:
            fill = None if snapshot is None else functools.partial(snapshot.fill, ids=ids)
            await link.start(plan, spec.startup_s, fill)
        except TimeoutError as error:
            await link.close()
            raise SandboxTimeout(f"the sandbox was not up within {spec.startup_s} s") from error
        except SandboxError:
            await link.close()
            raise
        except OSError as error:
            await link.close()
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
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await self._bury(server, self._look())

    def _look(self) -> host.Host:
        if self._host is None:
            self._host = host.look()
        if self._host.blocked:
            advice = f" Try: {self._host.advice}." if self._host.advice else ""
            raise IsolationError(
                f"no native sandbox here: {self._host.blocked}.{advice}", ("namespaces",)
            )
        return self._host

    def _missing(self, here: host.Host, spec: SandboxSpec) -> dict[str, str]:
        missing = {
            {"cpu": "cpus"}.get(name, name): why for name, why in here.groups.missing.items()
        }
        if here.rootless:
            missing.pop("pids", None)
        if spec.isolation in ("gvisor", "microvm"):
            missing[spec.isolation] = "the native backend isolates by namespaces"
        return missing

    def _plan(
        self,
        here: host.Host,
        server: SpawnServer,
        spec: SandboxSpec,
        ids: layout.Ids,
        number: int,
        fill: bool,
    ) -> bytes:
        """The plan of one sandbox: that of its kind, which is kept, with its own numbers put in."""
        kind = (spec.image, spec.memory_mb, spec.disk_mb, spec.max_pids, spec.cpus, spec.user,
                spec.workdir, _listens(spec), fill)  # fmt: skip
        found = server.plans.get(kind)
        if found is None:
            any_ids = ids if ids.rootless else layout.Ids(False, *ANY_IDS)
            plan = wire.Plan()
            cgroups.limit(plan, here.groups, server.name, ANY_NUMBER, spec, layout.HOST)
            grouped = "memory" in here.groups.folders
            spoken = landlock.version() if self.landlock else 0
            layout.box_plan(plan, spec, any_ids, grouped=grouped, fill=fill, landlock=spoken)
            found = bytes(plan.data)
            if spec.image is None:
                server.plans[kind] = found
        found = found.replace(f"/{ANY_NUMBER:08d}".encode(), f"/{number:08d}".encode())
        for any_id, own in zip(ANY_IDS, (ids.init, ids.user), strict=True):
            if ids.rootless:
                break
            found = found.replace(str(any_id).encode(), str(own).encode())
            found = found.replace(any_id.to_bytes(4, "little"), own.to_bytes(4, "little"))
        return found

    def _ids(self, here: host.Host, number: int) -> layout.Ids:
        if here.rootless:
            return layout.Ids(True, 0, 0)
        first = 0x70000000 + (os.getpid() % 32768) * 8192 + (number % 4096) * 2
        return layout.Ids(False, first, first + 1)

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
            name = f"{cgroups.owner_name()}.{id(self):x}.{self._numbers}"
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
            self._servers[loop] = server
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


def _refuse_unbuilt(spec: SandboxSpec) -> None:
    asked = [name for name in ("packages", "apt", "setup", "dockerfile") if getattr(spec, name)]
    if spec.user not in ("sandbox", "root"):
        asked.append(f"user {spec.user!r} (it knows 'sandbox' and 'root')")
    if spec.image is not None and not os.path.isdir(spec.image):
        raise ConfigError(
            f"image {spec.image!r}: expected a directory with a root file system, found none"
        )
    if asked:
        raise CapabilityError(
            f"the native sandbox cannot do this yet: {', '.join(asked)}. "
            "Give a prepared root file system as `image`, or drop it from the spec"
        )


def _explain(error: OSError, here: host.Host) -> SandboxError:
    what = f"{error.strerror} ({os.strerror(error.errno or 0)})"
    if error.errno in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOSYS):
        advice = here.advice or "run as root on a host (not in a container without privileges)"
        return IsolationError(
            f"this host refused a wall of the native sandbox: {what}. Try: {advice}; "
            "or use a container backend",
            ("namespaces",),
        )
    return SandboxError(f"the sandbox did not come up: {what}")
