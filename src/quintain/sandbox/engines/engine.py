"""Docker and Podman: containers over the Engine API.

Every sandbox is a container of its own with the agent as its first process, without network,
without capabilities for what it runs, with a read-only root and sized places to write. It carries
its owner's label; its stdin is its owner's connection, so it ends and is removed when the owner is
gone, and what an engine that was down could not remove is swept at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quintain.errors import IsolationError, SandboxError
from quintain.protocols import Probe
from quintain.record import Json
from quintain.sandbox import layout, probe
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.engines import owners, rootfs, setup
from quintain.sandbox.engines.api import AttachedLink, Engine, EngineError
from quintain.sandbox.engines.contained import ContainedSandbox
from quintain.sandbox.engines.images import Image, Images
from quintain.sandbox.engines.program import agent
from quintain.sandbox.network import Proxy
from quintain.sandbox.network.resolve import Resolve
from quintain.task import SandboxSpec

REMOVE_S = 60.0
LIMITS = {"memory_mb": "MemoryLimit", "max_pids": "PidsLimit", "cpus": "CpuCfsQuota"}
"""Field of a spec to what an engine says it can limit."""


class _Use:
    """An engine in one event loop."""

    def __init__(self, address: str, resolve: Resolve | None) -> None:
        self.engine = Engine(address)
        self.proxy = Proxy(resolve=resolve)
        self.images = Images(self.engine)
        self.info: dict[str, Json] = {}
        self.ready = asyncio.Lock()
        self.boxes: set[ContainedSandbox] = set()


class EngineBackend:
    """Opens sandboxes as containers of an engine.

    Args:
        address: `unix:///path` or `tcp://host:port`; by default as the engine's own tools find it.
        allow_weaker: go on where a limit cannot be enforced, instead of refusing by name.
        runtime: an OCI runtime that the engine knows, by name; by default its own, or `runsc` for
            `isolation="gvisor"`.
        resolve: gives networked sandboxes the addresses of a name; None: the host's resolver.
    """

    name = "engine"
    variable = ""
    """The environment variable with the address."""
    sockets: tuple[str, ...] = ()
    """Where its socket may be."""
    start_hint = ""

    def __init__(
        self,
        address: str | None = None,
        *,
        allow_weaker: bool = False,
        runtime: str | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._closed = False
        self.resolve = resolve
        self.address = address or self._find()
        self.allow_weaker = allow_weaker
        self.runtime = runtime
        self._uses: dict[asyncio.AbstractEventLoop, _Use] = {}

    def _find(self) -> str:
        told = os.environ.get(self.variable, "")
        if told:
            return told
        run = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
        places = [path.format(run=run) for path in self.sockets]
        return "unix://" + next((path for path in places if os.path.exists(path)), places[0])

    async def open(self, spec: SandboxSpec) -> ContainedSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`."""
        refuse_closed(self.name, self._closed)
        use = await self._use()
        missing = self._missing(use.info, spec)
        self._refuse(missing)
        setup.uid(spec)
        image = await use.images.get(spec)
        own_disk = await use.images.has_files(image, spec.workdir)
        if own_disk and not _caps_disk(use.info):
            missing["disk_mb"] = (
                "the image has files in the workdir, which then lies on the engine's own disk, and "
                f"its storage driver ({use.info.get('Driver')}) caps none; choose another workdir"
            )
            self._refuse(missing)
        name = f"quintain-{os.getpid()}-{secrets.token_hex(6)}"
        body = await asyncio.to_thread(self._body, spec, image, own_disk)
        if "disk_mb" in missing:
            body["HostConfig"].pop("StorageOpt")
        container = EngineContainer(use.engine, name)
        sandbox: ContainedSandbox | None = None
        try:
            await use.engine.call("POST", "/containers/create", query={"name": name}, body=body)
            await use.engine.call("POST", f"/containers/{name}/start")
            container.link = await use.engine.attach(name)
            env = {**layout.environment(spec), **image.env, **spec.env}
            frame = setup.first_frame(spec, places=list(body["HostConfig"]["Tmpfs"]))
            sandbox = ContainedSandbox(spec, container, frame, env, missing, use.boxes.discard)
            use.boxes.add(sandbox)
            await sandbox.start()
            await sandbox.let_out(use.proxy)
        except BaseException as error:
            await asyncio.shield(_undo(sandbox, container))
            if isinstance(error, EngineError):
                raise self._explain(error) from error
            raise
        return sandbox

    async def probe(self) -> Probe:
        """Opens a sandbox and attacks it; says what holds, and what to do about the rest."""
        try:
            use = await self._use()
        except SandboxError as error:
            why = str(error)
            await self._end()
            return Probe(self.name, False, missing={"engine": why}, advice=self.start_hint)
        info = use.info
        version = await use.engine.call("GET", "/version")
        security = " ".join(str(word) for word in info.get("SecurityOptions") or ())
        details: dict[str, Json] = {
            "version": version.get("Version"),
            "address": self.address,
            "storage": info.get("Driver"),
            "runtime": self.runtime or info.get("DefaultRuntime"),
            "control_groups": info.get("CgroupVersion"),
            "user_namespace": "name=userns" in security or "name=rootless" in security,
        }
        weaker = type(self)(self.address, allow_weaker=True, runtime=self.runtime)
        try:
            advice = "ask the engine's administrator for control groups with memory, pids and cpu"
            missing = self._missing(info, probe.SPEC)
            found = await probe.probe(weaker, missing, advice if missing else "", details)
        finally:
            await weaker.close()
        return found

    async def sweep(self) -> list[str]:
        """Removes the containers of dead owners; returns their names.

        Raises:
            SandboxError: the engine is not there.
        """
        return await _sweep((await self._use()).engine)

    async def close(self) -> None:
        """Ends every sandbox of this backend."""
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        uses, self._uses = self._uses, {}
        for use in uses.values():
            await asyncio.gather(*(box.close() for box in list(use.boxes)))
            await use.proxy.close()
            await use.images.forget()
            await use.engine.close()

    async def _use(self) -> _Use:
        loop = asyncio.get_running_loop()
        for other in [other for other in self._uses if other.is_closed()]:
            del self._uses[other]
        use = self._uses.get(loop)
        if use is None:
            use = self._uses[loop] = _Use(self.address, self.resolve)
        async with use.ready:
            if not use.info:
                await asyncio.to_thread(agent)
                try:
                    info = await use.engine.call("GET", "/info", timeout_s=20)
                    await _sweep(use.engine)
                except EngineError as error:
                    raise self._explain(error) from error
                use.info = info
        return use

    def _missing(self, info: dict[str, Json], spec: SandboxSpec) -> dict[str, str]:
        missing = {
            field: f"{self.name} says it cannot limit this ({told} is off)"
            for field, told in LIMITS.items()
            if info.get(told) is False
        }
        if spec.network.mode != "none" and not self._sees_processes():
            missing["network"] = "the way out is made as root, on the engine's own host"
        if spec.network.mode != "none" and (self.runtime or spec.isolation) in ("gvisor", "runsc"):
            missing["network"] = "gVisor has a network stack of its own, which has no way out"
        if spec.isolation == "microvm":
            missing["microvm"] = "containers share the host's kernel"
        if spec.isolation == "gvisor" and "runsc" not in (info.get("Runtimes") or {}):
            missing["gvisor"] = f"{self.name} knows no runtime named runsc"
        return missing

    def _sees_processes(self) -> bool:
        return os.geteuid() == 0 and self.address.startswith("unix:")

    def _refuse(self, missing: dict[str, str]) -> None:
        hard = {name: why for name, why in missing.items() if name in ("network", "microvm")}
        hard |= {name: why for name, why in missing.items() if name == "gvisor"}
        refused = hard if self.allow_weaker else missing
        if refused:
            listed = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise IsolationError(
                f"{self.name} cannot enforce {listed}. Use another backend, or accept a missing "
                "limit with allow_weaker=True (--allow-weaker)",
                tuple(refused),
            )

    def _explain(self, error: EngineError) -> SandboxError:
        if error.status == 0:
            return IsolationError(f"{error}. {self.start_hint}", ("engine",))
        return SandboxError(f"{self.name}: {error}")

    def _body(self, spec: SandboxSpec, image: Image, own_disk: bool) -> dict[str, Json]:
        labels = {owners.LABEL: owners.mine()}
        return {
            "Image": image.id,
            "Entrypoint": [setup.AGENT],
            "Cmd": [],
            "Env": [],
            "User": "0:0",
            "WorkingDir": "/",
            "Hostname": "sandbox",
            "Labels": labels,
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "HostConfig": self._host_config(spec, image, own_disk),
        }

    def _host_config(self, spec: SandboxSpec, image: Image, own_disk: bool) -> dict[str, Json]:
        places = setup.shares(spec)
        if own_disk:
            del places[spec.workdir]
        shm = places.pop("/dev/shm")
        # What is written lies in memory, and is counted there.
        memory = (spec.memory_mb + spec.disk_mb) << 20
        runtime = self.runtime or ("runsc" if spec.isolation == "gvisor" else None)
        found: dict[str, Json] = {
            "AutoRemove": True,
            "NetworkMode": "none",
            "ReadonlyRootfs": not own_disk,
            "CapDrop": ["ALL"],
            "CapAdd": list(setup.CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": spec.max_pids + setup.OWN_PROCESSES,
            "NanoCpus": round(spec.cpus * 1e9),
            "OomScoreAdj": 500,
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "ShmSize": shm,
            "Tmpfs": {path: self._tmpfs(size) for path, size in places.items()},
            "MaskedPaths": list(setup.MASKED),
            "ReadonlyPaths": list(setup.READ_ONLY),
            "Mounts": _mounts(spec, image),
            "LogConfig": {"Type": "none"},
            "Init": False,
        }
        if own_disk:
            found["StorageOpt"] = {"size": f"{spec.disk_mb}M"}
        return found if runtime is None else {**found, "Runtime": runtime}

    def _tmpfs(self, size: int) -> str:
        """The options of a place to write."""
        return f"rw,exec,nosuid,nodev,size={size},mode=1777,nr_inodes={max(64, size >> 12)}"


class DockerBackend(EngineBackend):
    """Opens sandboxes as containers of a Docker engine; see `EngineBackend`."""

    name = "docker"
    variable = "DOCKER_HOST"
    sockets = ("/var/run/docker.sock", "{run}/docker.sock")
    start_hint = "Start Docker, or say where it is with DOCKER_HOST"


class PodmanBackend(EngineBackend):
    """Opens sandboxes as containers of Podman's service; see `EngineBackend`."""

    name = "podman"
    variable = "CONTAINER_HOST"
    sockets = ("{run}/podman/podman.sock", "/run/podman/podman.sock")
    start_hint = "Start `podman system service --time=0`, or say where it is with CONTAINER_HOST"

    def _host_config(self, spec: SandboxSpec, image: Image, own_disk: bool) -> dict[str, Json]:
        # Its own defaults may be more than its host allows; commands get lower ones anyhow.
        limits = {"nofile": 4096, "nproc": 16_384}
        ulimits = [{"Name": name, "Soft": most, "Hard": most} for name, most in limits.items()]
        found = super()._host_config(spec, image, own_disk)
        # Of the fields for masks and read-only paths it takes no notice.
        masks = f"mask={':'.join(setup.MASKED)}"
        return {**found, "Ulimits": ulimits, "SecurityOpt": [*found["SecurityOpt"], masks]}

    def _tmpfs(self, size: int) -> str:
        # It knows no nr_inodes: what empty files cost is counted as the container's memory.
        return super()._tmpfs(size).rpartition(",")[0]


class EngineContainer:
    """A container of an engine, by name."""

    link: AttachedLink

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    async def pid(self) -> int:
        """Its first process, as the engine's host sees it."""
        found = await self._engine.call("GET", f"/containers/{self.name}/json")
        pid = int((found.get("State") or {}).get("Pid") or 0)
        if not pid or not await asyncio.to_thread(_is_agent, pid):
            raise SandboxError("the container's process is not to be seen from here")
        return pid

    async def why_gone(self) -> tuple[bool, str]:
        """Whether it ran out of memory as a whole, and what the engine says of its end."""
        try:
            found = await self._engine.call("GET", f"/containers/{self.name}/json")
        except SandboxError:
            return False, "its container is gone"
        state = found.get("State") or {}
        said = str(state.get("Error") or "")
        return bool(state.get("OOMKilled")), f"its container is {state.get('Status')} {said}"

    async def remove(self) -> None:
        """Kills and removes it."""
        await _remove(self._engine, self.name)


def _is_agent(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "agent"
    return False


async def _remove(engine: Engine, name: str) -> None:
    """Removes a container with its volumes; fine when it is gone or going."""
    query = {"force": "1", "v": "1"}
    async with asyncio.timeout(REMOVE_S):
        while True:
            try:
                await engine.call("DELETE", f"/containers/{quote(name)}", query=query)
            except EngineError as error:
                if error.status == 404:
                    return
                if error.status not in (409, 500):
                    raise
            await asyncio.sleep(0.02)


def _caps_disk(info: dict[str, Json]) -> bool:
    """Whether the storage driver can cap what a container writes to its root."""
    backing = {str(row[0]): str(row[1]) for row in info.get("DriverStatus") or () if len(row) > 1}
    driver = info.get("Driver")
    return driver in ("btrfs", "zfs") or (
        driver == "overlay2" and backing.get("Backing Filesystem") == "xfs"
    )


async def _undo(sandbox: ContainedSandbox | None, container: EngineContainer) -> None:
    if sandbox is not None:
        await sandbox.close()
        return
    with contextlib.suppress(SandboxError, TimeoutError):
        await container.remove()
    if hasattr(container, "link"):
        await container.link.close()


async def _sweep(engine: Engine) -> list[str]:
    filters = {"label": [owners.LABEL]}
    found = await engine.call("GET", "/containers/json", query={"all": "1", "filters": filters})
    dead = [
        str(one["Id"])
        for one in found or ()
        if owners.is_dead(str((one.get("Labels") or {}).get(owners.LABEL, "")))
    ]
    await asyncio.gather(*(_remove(engine, name) for name in dead))
    return dead


def _mounts(spec: SandboxSpec, image: Image) -> list[dict[str, Json]]:
    pairs = [(str(agent()), setup.AGENT), (setup.meminfo(spec), "/proc/meminfo")]
    pairs += setup.network_mounts(spec)
    # An engine would tell the host's resolver and names; without an image the rest is in place.
    names = ["hosts", "resolv.conf", *([] if image.host else ["passwd", "group"])]
    etc = {node.path: node.data or b"" for node in rootfs.view()}
    pairs += [(setup.file_of(name, etc[f"etc/{name}"]), f"/etc/{name}") for name in names]
    if image.host:
        pairs += rootfs.mounts()
    binding: dict[str, Any] = {"Type": "bind", "ReadOnly": True}
    return [{**binding, "Source": source, "Target": target} for source, target in pairs]
