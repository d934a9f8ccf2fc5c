"""OCI runtimes without an engine: runc, crun, and gVisor's runsc.

A sandbox is a bundle in a folder of its owner. A small script in a mount namespace of its own
mounts the sized disk and the overlay, runs the runtime in the foreground, and removes the bundle.
The container's first process has the owner's pipe as its stdin: when the owner is gone the agent
ends, the runtime then removes its state and control group, the script the bundle, and the mounts go
with their namespace. What a killed script leaves is swept at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

from quintain.errors import CapabilityError, IsolationError, SandboxError
from quintain.protocols import Probe
from quintain.record import Json
from quintain.sandbox import cgroups, layout, probe
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.engines import bundle, ground, rootfs, setup
from quintain.sandbox.engines.contained import ContainedSandbox
from quintain.sandbox.engines.pipes import PipeLink
from quintain.sandbox.engines.program import agent
from quintain.sandbox.images.image import Image
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.network import Proxy
from quintain.sandbox.network.resolve import Resolve
from quintain.task import SandboxSpec

BASE = "/run/quintain"
CALL_S = 30.0
KILLED = 137
"""Exit code of a runtime whose sandbox was killed."""
SCRIPT = r"""
set -e
folder=$1 size=$2 inodes=$3 lower=$4 more=$5 owner=$6 user=$7 workdir=$8 unified=$9
shift 9
cd "$folder"
mkdir disk root
mount -t tmpfs -o "nosuid,nodev,size=$size,nr_inodes=$inodes,mode=755" quintain disk
mkdir disk/upper disk/work disk/shm disk/tmp
mkdir -p "disk/upper/$workdir" disk/upper/home/sandbox disk/upper/proc disk/upper/dev
mkdir -p disk/upper/sys/fs/cgroup disk/upper/run/network disk/upper/tmp disk/upper/var/tmp
: >disk/upper/.agent
chmod 1777 disk/shm disk/tmp disk/upper/tmp disk/upper/var/tmp
chown -R "$owner:$owner" disk
chown "$user:$user" "disk/upper/$workdir" disk/upper/home/sandbox
eval "$more"
layers="lowerdir=$lower,upperdir=disk/upper,workdir=disk/work"
mount -t overlay -o "nosuid,nodev,$layers" overlay root
if [ "$unified" != "" ]; then umount "$unified"; fi
set +e
"$@"
code=$?
cd /
umount -l "$folder/root" "$folder/disk" "$folder"/tree-* 2>/dev/null
rm -rf "$folder"
exit $code
"""
"""Its last arguments are the runtime's command line."""


class OciBackend:
    """Opens sandboxes with an OCI runtime.

    Args:
        allow_weaker: go on where a limit cannot be enforced, instead of refusing by name.
        program: the runtime's program; by default found on the PATH.
        resolve: gives networked sandboxes the addresses of a name; None: the host's resolver.
    """

    name = "oci"

    def __init__(
        self,
        *,
        allow_weaker: bool = False,
        program: str | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._closed = False
        self.kind = bundle.KINDS[self.name]
        self.resolve = resolve
        self._proxies: dict[asyncio.AbstractEventLoop, Proxy] = {}
        self.allow_weaker = allow_weaker
        self.program = program or shutil.which(self.kind.program) or ""
        self._boxes: set[ContainedSandbox] = set()
        self._numbers = 0
        self._folder = ""
        self._library: NativeBackend | None = None
        """Finds and builds images."""
        self._making = threading.Lock()

    async def open(self, spec: SandboxSpec) -> ContainedSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`."""
        refuse_closed(self.name, self._closed)
        missing = self._missing(spec)
        self._refuse(spec, missing)
        await asyncio.to_thread(self._ready)
        image = await self._image(spec)
        if image is not None:
            await asyncio.to_thread(image.refuse_without_programs)
            spec = image.settle(spec).model_copy(update={"user": spec.user})
        self._numbers += 1
        name = f"{os.path.basename(self._folder)}.{self._numbers}"
        folder = f"{self._folder}/{self._numbers}"
        place = bundle.Place(
            folder,
            f"{cgroups.PREFIX}{name}",
            0 if self.kind.own_kernel else 0x68000000 + (os.getpid() % 32768) * 4096
            + self._numbers % 2048 * 2,
            ground.of_view(f"{self._folder}/view") if image is None
            else await asyncio.to_thread(ground.of_image, image, folder),
        )  # fmt: skip
        await asyncio.to_thread(self._lay, spec, place)
        argv = self._command(spec, place, name)
        container = RuntimeContainer(self._runtime(), name, place.folder, self.kind.own_kernel)
        sandbox: ContainedSandbox | None = None
        try:
            container.link = await PipeLink.start(argv)
            frame = setup.first_frame(spec, own_kernel=self.kind.own_kernel)
            env = layout.environment(spec, image)
            sandbox = ContainedSandbox(spec, container, frame, env, missing, self._boxes.discard)
            self._boxes.add(sandbox)
            await sandbox.start()
            await sandbox.let_out(self._proxy())
        except BaseException:
            await asyncio.shield(sandbox.close() if sandbox else container.remove())
            raise
        return sandbox

    async def probe(self) -> Probe:
        """Opens a sandbox and attacks it; says what holds, and what to do about the rest."""
        missing = self._missing(probe.SPEC)
        advice = f"run as root, with {self.kind.program} (Debian: apt-get install "
        advice += f"{self.kind.package})"
        details: dict[str, Json] = {"program": self.program}
        if self.program:
            told = await asyncio.to_thread(self._run, ["--version"])
            details["version"] = told.splitlines()[0] if told else ""
        weaker = type(self)(allow_weaker=True, program=self.program or None)
        try:
            return await probe.probe(weaker, missing, advice, details)
        finally:
            await weaker.close()

    async def close(self) -> None:
        """Ends every sandbox of this backend."""
        self._closed = True
        await asyncio.gather(*(box.close() for box in list(self._boxes)))
        if self._library is not None:
            await self._library.close()
            self._library = None
        proxy = self._proxies.pop(asyncio.get_running_loop(), None)
        if proxy is not None:
            await proxy.close()
        if self._folder:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = ""

    def _proxy(self) -> Proxy:
        loop = asyncio.get_running_loop()
        for other in [other for other in self._proxies if other.is_closed()]:
            del self._proxies[other]
        if loop not in self._proxies:
            self._proxies[loop] = Proxy(resolve=self.resolve)
        return self._proxies[loop]

    def _missing(self, spec: SandboxSpec) -> dict[str, str]:
        found = dict(cgroups.find().missing)
        names = {"memory": "memory_mb", "pids": "max_pids", "cpu": "cpus"}
        missing = {names[name]: why for name, why in found.items()}
        if spec.isolation == "microvm" or (spec.isolation == "gvisor" and not self.kind.own_kernel):
            missing[spec.isolation] = f"{self.name} does not isolate by that"
        return missing

    def _refuse(self, spec: SandboxSpec, missing: dict[str, str]) -> None:
        hard: dict[str, str] = {}
        if not self.program:
            hard[self.kind.program] = f"not found; Debian: apt-get install {self.kind.package}"
        if os.geteuid() != 0:
            hard["root"] = "the bundle's mounts and control groups need root"
        if spec.network.mode != "none" and self.kind.own_kernel:
            hard["network"] = "gVisor has a network stack of its own, which has no way out"
        if spec.isolation in missing:
            hard[spec.isolation] = missing[spec.isolation]
        refused = hard if self.allow_weaker else {**missing, **hard}
        if refused:
            listed = "; ".join(f"{name}: {why}" for name, why in refused.items())
            raise IsolationError(f"{self.name} cannot enforce {listed}", tuple(refused))
        if setup.uid(spec) == 0 and self.kind.own_kernel:
            raise CapabilityError(
                f"{self.name}: user 'root' is not possible: in its kernel root may end the first "
                "process, which keeps the limits"
            )

    async def _image(self, spec: SandboxSpec) -> Image | None:
        """The image of a spec, of the same library as the native backend's."""
        if self._library is None:
            self._library = NativeBackend(allow_weaker=self.allow_weaker, resolve=self.resolve)
        return await self._library.prepare(spec)

    def _runtime(self) -> list[str]:
        return [self.program, *self.kind.flags, "--root", f"{self._folder}/state"]

    def _run(self, arguments: list[str]) -> str:
        run = subprocess.run(
            [self.program, *arguments], capture_output=True, timeout=CALL_S, text=True
        )
        return run.stdout + run.stderr

    def _ready(self) -> None:
        """Makes this backend's folder, once; sweeps those of dead owners."""
        with self._making:
            if self._folder:
                return
            agent()
            sweep()
            folder = _own_folder(self.name)
            os.mkdir(f"{folder}/view", 0o755)
            rootfs.lay(rootfs.view(), f"{folder}/view")
            self._folder = folder

    def _lay(self, spec: SandboxSpec, place: bundle.Place) -> None:
        os.mkdir(place.folder, 0o711)
        content = json.dumps(bundle.config(spec, self.kind, place))
        Path(place.folder, "config.json").write_text(content)

    def _command(self, spec: SandboxSpec, place: bundle.Place, name: str) -> list[str]:
        user = place.first_id + (1 if setup.uid(spec) else 0)
        if self.kind.own_kernel:
            user = setup.uid(spec)
        unified = "/sys/fs/cgroup/unified"
        hybrid = self.kind.unified_off and os.path.ismount(unified)
        words = [
            place.folder, str(spec.disk_mb << 20), str(max(4096, spec.disk_mb * 256)),
            place.ground.lower, place.ground.script,
            str(place.first_id), str(user), spec.workdir.lstrip("/"), unified if hybrid else "",
        ]  # fmt: skip
        run = [*self._runtime(), "run", "--bundle", place.folder, name]
        return ["unshare", "--mount", "sh", "-c", SCRIPT, "sandbox", *words, *run]


class RuncBackend(OciBackend):
    """Opens sandboxes with runc; see `OciBackend`."""

    name = "runc"


class CrunBackend(OciBackend):
    """Opens sandboxes with crun; see `OciBackend`."""

    name = "crun"


class GvisorBackend(OciBackend):
    """Opens sandboxes with gVisor's runsc, a kernel of its own; see `OciBackend`."""

    name = "gvisor"


class RuntimeContainer:
    """A container of a runtime, by name."""

    link: PipeLink

    def __init__(self, runtime: list[str], name: str, folder: str, own_kernel: bool) -> None:
        self._runtime = runtime
        self._own_kernel = own_kernel
        self._name = name
        self._folder = folder

    async def pid(self) -> int:
        """Its first process, as the runtime knows it."""
        argv = [*self._runtime, "state", self._name]
        run = await asyncio.to_thread(
            subprocess.run, argv, capture_output=True, timeout=CALL_S, text=True
        )
        try:
            return int(json.loads(run.stdout)["pid"])
        except (ValueError, KeyError) as error:
            raise SandboxError(f"the runtime does not know its process: {run.stderr}") from error

    async def why_gone(self) -> tuple[bool, str]:
        """Whether it ran out of memory as a whole, and how its runtime ended."""
        code = await self.link.ended(CALL_S)
        # Nothing inside can kill a kernel that is a process of the host: its memory ran out.
        return self._own_kernel and code == KILLED, f"its runtime ended with {code}"

    async def remove(self) -> None:
        """Ends it: its first process ends with its stdin, the rest follows."""
        if not hasattr(self, "link"):
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            return
        await self.link.hang_up()
        try:
            await self.link.ended(5.0)
        except TimeoutError:
            await asyncio.to_thread(_delete, self._runtime, self._name)
            await self.link.ended(CALL_S)


def _own_folder(name: str) -> str:
    """A new folder that names its owner, as control groups do: any sweeper sees that he lives."""
    os.makedirs(BASE, mode=0o755, exist_ok=True)
    owner = cgroups.owner_name().removeprefix(cgroups.PREFIX)
    at = 0
    while True:
        folder = f"{BASE}/{owner}.{name}.{at}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o711)
            return folder
        at += 1


def _delete(runtime: list[str], name: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([*runtime, "delete", "--force", name], capture_output=True, timeout=CALL_S)


def sweep() -> list[str]:
    """Ends and removes the bundles of dead owners; returns their folders."""
    removed = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(BASE):
            runtime = (*entry.split("."), "")[-3]
            kind = bundle.KINDS.get(runtime)
            if kind is None or cgroups.is_alive(cgroups.PREFIX + entry):
                continue
            folder = f"{BASE}/{entry}"
            program = [kind.program, *kind.flags, "--root", f"{folder}/state"]
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(f"{folder}/state"):
                    _delete(program, name)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    _sweep_groups(removed)
    return removed


def _sweep_groups(folders: list[str]) -> None:
    """Removes control groups that a killed runtime could not."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if not right.startswith("cgroup"):
            continue
        top = left.split()[4]
        for folder in folders:
            for place in Path(top).rglob(f"{cgroups.PREFIX}{os.path.basename(folder)}.*"):
                with contextlib.suppress(OSError):
                    place.rmdir()
