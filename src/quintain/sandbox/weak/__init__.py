"""The weaker tier: sandboxes where namespaces are forbidden, over the package `sandlock`.

Landlock hides the host's files, system calls are filtered or answered by a supervisor, and paths
are translated so that `/work`, `/tmp`, `/home`, `/run`, `/root`, `/var` and `/etc` are folders of
the sandbox's own. There is no namespace: names in the host's `/` can be listed, its `/proc` shows
facts of the host, and abstract UNIX sockets are shared. `probe()` says what holds here.

It is opened only for `SandboxSpec(isolation="weak")`, never in place of something stronger.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import secrets
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from quintain.errors import (
    CapabilityError,
    ConfigError,
    IsolationError,
    SandboxError,
    SandboxTimeout,
)
from quintain.protocols import Probe
from quintain.sandbox import cgroups, host, layout, probe, wire
from quintain.sandbox import filter as calls
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.kernel import remove_system_v
from quintain.sandbox.link import Link
from quintain.sandbox.running import NativeSandbox
from quintain.sandbox.server import SpawnServer
from quintain.sandbox.snapshot import Snapshot
from quintain.sandbox.weak.steward import PROGRAMS
from quintain.task import SandboxSpec

CAP_SETUID = 7
INSTALL = "pip install 'quintain[weak]'"
PREFIX = "quintain-weak-"
FOLDERS = {
    "/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777, "/home/sandbox": 0o755,
    "/root": 0o700, "/run": 0o755,
}  # fmt: skip
MOUNTS = ("/tmp", "/var", "/dev/shm", "/home", "/root", "/run")
READ_DEVICES = ("/dev/random", "/dev/urandom")
WRITE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
TAKEN = (*PROGRAMS, "etc", "proc", "dev", "sys", "boot")
MISSING = {
    "disk": "no quota without a file system of its own: only the size of one file is limited",
    "cpus": "without control groups nothing divides the processors",
}
"""Limits that this tier cannot enforce, on any host."""


class WeakSandbox(NativeSandbox):
    """An open sandbox of `WeakBackend`."""

    capabilities = frozenset({"session", "python", "list", "transfer"})
    isolation = "weak"

    def __init__(self, spec: SandboxSpec, link: Link, uid: int) -> None:
        # Only snapshots ask the backend for something, and there are none.
        ids = layout.Ids(False, uid, uid, uid, uid, uid)
        super().__init__(spec, link, ids, MISSING, None)  # type: ignore[arg-type]

    async def reset(self) -> NativeSandbox:
        """Not here: nothing can prove it."""
        raise CapabilityError("the weak sandbox cannot be reset: open a fresh one")

    async def snapshot(self) -> Snapshot:
        """Not here: nothing makes it stand still."""
        raise CapabilityError("the weak sandbox takes no snapshots")

    async def restore(self, taken: Snapshot) -> None:
        """Not here; see `snapshot`."""
        raise CapabilityError("the weak sandbox takes no snapshots")

    async def fork(self) -> NativeSandbox:
        """Not here; see `snapshot`."""
        raise CapabilityError("the weak sandbox takes no snapshots")


class WeakBackend:
    """Opens sandboxes without namespaces.

    Args:
        allow_weaker: go on where a limit cannot be enforced, instead of refusing by name.
    """

    name = "weak"

    def __init__(self, *, allow_weaker: bool = False) -> None:
        self.allow_weaker = allow_weaker
        self._servers: dict[asyncio.AbstractEventLoop, SpawnServer] = {}
        self._starting = asyncio.Lock()
        self._numbers = 0
        self._closed = False
        self._owner = f"{os.getpid()}-{cgroups.start_time(os.getpid())}-{secrets.token_hex(4)}"

    async def open(self, spec: SandboxSpec) -> WeakSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`.

        Raises:
            IsolationError: the spec asks for more than "weak", or for a limit that cannot be
                enforced.
            CapabilityError: it asks for an image, a build or a network.
        """
        refuse_closed(self.name, self._closed)
        blocked = unavailable()
        if blocked:
            raise IsolationError(f"no weak sandbox here: {blocked}", ("landlock",))
        if spec.isolation != "weak":
            raise IsolationError(
                f"isolation {spec.isolation!r} was asked for and the weak sandbox has no "
                'namespaces: say SandboxSpec(isolation="weak") to accept that',
                (spec.isolation,),
            )
        _refuse_unbuilt(spec)
        if not self.allow_weaker:
            listed = "; ".join(f"{name}: {why}" for name, why in MISSING.items())
            raise IsolationError(
                f"the weak sandbox cannot enforce {listed}. Accept it with allow_weaker=True "
                "(--allow-weaker), or use a stronger backend",
                tuple(MISSING),
            )
        server = await self._server()
        self._numbers += 1
        uid = user_for(self._numbers)
        link = Link(server, self._numbers)
        plan = plan_of(spec, uid, self._owner, self._numbers)
        try:
            await link.start(json.dumps(plan).encode(), spec.startup_s)
        except TimeoutError as error:
            await link.close()
            raise SandboxTimeout(f"the sandbox was not up within {spec.startup_s} s") from error
        except SandboxError:
            await link.close()
            raise
        except OSError as error:
            await link.close()
            raise SandboxError(f"the sandbox did not come up: {error.strerror}") from error
        except BaseException:
            await link.close()
            raise
        return WeakSandbox(spec, link, uid)

    async def probe(self) -> Probe:
        """Opens a sandbox and attacks it; says what holds, and what to do about the rest."""
        details = {"isolation": "weak", "scope": "memory_mb and max_pids hold for each command"}
        blocked = unavailable()
        if blocked:
            return Probe(self.name, available=False, advice=blocked, details=details)
        weaker = WeakBackend(allow_weaker=True)
        spec = probe.SPEC.model_copy(update={"isolation": "weak"})
        advice = "a tier for hosts that forbid namespaces: prefer any other backend that is here"
        try:
            return await probe.probe(weaker, MISSING, advice, details, spec=spec)
        finally:
            await weaker.close()

    async def close(self) -> None:
        """Ends every sandbox of this backend and its keepers."""
        self._closed = True
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await self._bury(server)

    async def _server(self) -> SpawnServer:
        loop = asyncio.get_running_loop()
        async with self._starting:
            server = self._servers.get(loop)
            if server is not None and server.alive():
                return server
            if server is not None:
                await self._bury(self._servers.pop(loop))
            for other in [loop for loop in self._servers if loop.is_closed()]:
                self._servers.pop(other).hang_up()
            await asyncio.to_thread(sweep)
            folder = f"{tempfile.gettempdir()}/{PREFIX}{self._owner}-{self._numbers}"
            plan = wire.Plan(bytearray(json.dumps({"folder": folder}).encode()))
            argv = [sys.executable, "-m", "quintain.sandbox.weak.keeper"]
            path = os.pathsep.join(entry for entry in sys.path if entry)
            try:
                server = await SpawnServer.start(argv, plan, {"PYTHONPATH": path})
            except OSError as error:
                raise SandboxError(f"the keeper did not come up: {error.strerror}") from error
            server.name = folder
            self._servers[loop] = server
            return server

    async def _bury(self, server: SpawnServer) -> None:
        await server.close()
        await asyncio.to_thread(shutil.rmtree, server.name, ignore_errors=True)


def unavailable() -> str:
    """Why no weak sandbox can be opened here; empty when it can be tried."""
    if sys.platform != "linux":
        return "it needs Linux"
    if find_spec("sandlock") is None:
        return f"sandlock is not installed: {INSTALL}"
    import sandlock  # an extra

    have, need = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
    if have < need:
        return f"Landlock version {need} is needed (Linux 6.12), this kernel has {max(have, 0)}"
    return ""


def users_of(pid: int) -> range:
    """The user numbers of an owner's sandboxes."""
    first = 0x70000000 + (pid % 32768) * 8192
    return range(first, first + 8192)


def user_for(number: int) -> int:
    """Whose rights a sandbox has: a number of its own where this process may choose, else its own.

    An unprivileged container maps only some numbers; of those one is taken from the upper part.
    """
    if not host.has_capability(CAP_SETUID):
        return os.geteuid()
    wanted = users_of(os.getpid())[number % 8192]
    small = 32_768 + (os.getpid() + number) % 16_384
    return next((uid for uid in (wanted, small) if _mapped(uid)), os.geteuid())


def _mapped(uid: int) -> bool:
    """Whether the number exists in this user namespace, as user and as group."""
    return all(
        any(
            int(first) <= uid < int(first) + int(count)
            for first, _, count in (line.split() for line in Path(table).read_text().splitlines())
        )
        for table in ("/proc/self/uid_map", "/proc/self/gid_map")
    )


def sweep() -> list[str]:
    """Removes the folders of owners that are dead; returns what was removed."""
    removed = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if not entry.name.startswith(PREFIX) or entry.is_symlink():
                continue
            pid, _, rest = entry.name.removeprefix(PREFIX).partition("-")
            if not cgroups.alive(pid, rest.partition("-")[0]):
                shutil.rmtree(entry.path, ignore_errors=True)
                remove_system_v(users_of(int(pid)))
                removed.append(entry.path)
    return removed


def plan_of(spec: SandboxSpec, uid: int, owner: str, number: int) -> dict[str, object]:
    """What the keeper needs to know to open a sandbox and to run its commands."""
    top = "/" + spec.workdir.split("/")[1]
    mounts = [mount for mount in MOUNTS if mount != top]
    if not any((spec.workdir + "/").startswith(f"{mount}/") for mount in MOUNTS):
        mounts.append(top)
    elif top != "/dev":
        mounts = list(MOUNTS)
    chosen = layout.python()
    read_only = {"/opt/python": chosen.prefix} if chosen.prefix else {}
    programs = [f"/{name}" for name in PROGRAMS if name != "opt" and os.path.isdir(f"/{name}")]
    return {
        "uid": uid,
        "owner": owner,
        "number": number,
        "folders": {**FOLDERS, spec.workdir: 0o755},
        "etc": {
            name: data if isinstance(data, str) else data.decode("latin-1")
            for name, data in layout.etc_files().items()
        },
        "links": layout.etc_links(),
        "mounts": mounts,
        "tops": sorted({mount.split("/")[1] for mount in mounts}),
        "read_only": read_only,
        "readable": [*programs, *read_only, "/etc", "/proc", *READ_DEVICES],
        "devices": WRITE_DEVICES,
        "denied": [f"/proc/{name}" for name in (*layout.covered()[0], *layout.covered()[1])],
        "refused": sorted(calls.TABLES.get(platform.machine(), {})),
        "memory": spec.memory_mb << 20,
        "processes": spec.max_pids,
        "limits": {"RLIMIT_FSIZE": spec.disk_mb << 20, "RLIMIT_NOFILE": 1024, "RLIMIT_CORE": 0},
    }


def _refuse_unbuilt(spec: SandboxSpec) -> None:
    asked = [name for name in ("image", "packages", "apt", "setup", "dockerfile")
             if getattr(spec, name)]  # fmt: skip
    if spec.network.mode != "none":
        asked.append(f"network mode {spec.network.mode!r}")
    if asked:
        raise CapabilityError(f"the weak sandbox cannot do this: {', '.join(asked)}")
    if spec.user not in ("sandbox", "root"):
        raise CapabilityError(f"user {spec.user!r}: it knows 'sandbox' and 'root'")
    if spec.workdir.split("/")[1] in TAKEN and not spec.workdir.startswith("/dev/shm/"):
        raise ConfigError(
            f"workdir {spec.workdir!r} lies in a folder that is not the sandbox's own"
        )
