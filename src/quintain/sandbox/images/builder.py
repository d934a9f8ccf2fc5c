"""Carrying out a recipe inside a sandbox; what it writes becomes a layer.

The build's own sandbox has the base as its read-only lower layer and a folder of the image store as
the writable one: root inside, with rights over its own files only, behind the same walls as every
sandbox, with the network of the sandboxes that it is for (by default none). Packages are fetched
before (`fetch.py`) and shown read-only. At the end the layer is cleaned: the ids of the sandbox
become those of the image again; set-uid bits, sockets and what is temporary go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import BuildError, CapabilityError, SandboxError
from quintain.protocols import ExecResult
from quintain.sandbox import layout, wire
from quintain.sandbox.images import fetch
from quintain.sandbox.images.dockerfile import Copy, Folder, Run
from quintain.sandbox.images.image import Config, Image, Tree, User
from quintain.sandbox.images.recipe import Apt, Packages, Recipe, Step
from quintain.sandbox.images.store import Entry, Store, remove_tree, tree_bytes
from quintain.sandbox.running import NativeSandbox
from quintain.task import NetworkPolicy, SandboxSpec

log = logging.getLogger(__name__)

TAIL = 3000
WATCH_S = 1.0
SHARED_MB = 256
"""Of a build's `/dev/shm`; what it writes elsewhere goes to the layer."""
FOLDERS = {"/": "root", "/usr": "usr", "/opt/python": "python", "/var/lib/dpkg": "dpkg"}
DPKG = Tree("/var/lib/dpkg", ("/var/lib/dpkg",))
TEMPORARY = ("tmp", "var/tmp", "run", "dev", "proc", "sys", "var/cache/apt", "var/lib/apt/lists")
OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
PIP_ENV = {"PYTHONPATH": f"{layout.BUILD_INPUTS}/pip.zip", "PIP_CONFIG_FILE": "/dev/null"}
PIP = (
    "python3", "-m", "pip", "install", "--no-index", "--no-cache-dir", "--no-input", "--quiet",
    "--disable-pip-version-check", "--root-user-action=ignore", "--break-system-packages",
    "--no-warn-script-location", "--find-links", f"{layout.BUILD_INPUTS}/wheels", "--",
)  # fmt: skip
DPKG_ENV = {
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """What a build may use; its own, not those of the sandboxes that it is for."""

    wall_s: float = 1800.0
    """From the first download to the finished layer."""
    cpus: float = 4.0
    memory_mb: int = 4096
    disk_mb: int = 16_384
    """Of the layer: measured every second, the build is killed above it."""
    max_pids: int = 2048

    def spec(self, network: NetworkPolicy) -> SandboxSpec:
        """The spec of a build's sandbox."""
        return SandboxSpec(
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            disk_mb=SHARED_MB,
            max_pids=self.max_pids,
            user="root",
            workdir="/",
            network=network,
            exec_s=self.wall_s,
            max_output_bytes=4_000_000,
        )


Opener = Callable[
    [SandboxSpec, Image, layout.Workshop], contextlib.AbstractAsyncContextManager[NativeSandbox]
]
"""Opens the sandbox of a build."""


async def build(
    recipe: Recipe,
    base: Image,
    folder: Path,
    store: Store,
    opener: Opener,
    limits: BuildLimits,
    *,
    network: NetworkPolicy,
    rootless: bool,
) -> Entry:
    """Builds a recipe's layer in an empty folder of the store.

    Args:
        recipe: what to do.
        base: what it is built on.
        folder: becomes the entry.
        store: keeps what is fetched.
        opener: opens the sandbox.
        limits: of the build.
        network: what its commands may reach: the same as the sandboxes that it is for.
        rootless: whether there is one id only.

    Raises:
        BuildError: a step failed, or ran into a limit; names it and ends with its output.
        ConfigError: the recipe is wrong.
        CapabilityError: it needs what is not here.
    """
    first_id = 0 if rootless else layout.first_id()
    apt = any(isinstance(step, Apt) for step in recipe.steps)
    if apt and base.host and rootless:
        raise CapabilityError(
            "apt: packages replace files of the host's /usr, which belong to root; an ordinary "
            "user needs another base (image=…), or root"
        )
    trees = (*base.trees, DPKG) if apt and base.host else base.trees
    workshop = _workshop(folder, trees, base, first_id, limits.disk_mb)
    began = time.monotonic()
    # Told without being asked: whoever waits for minutes shall know for what.
    log.warning("building image %s once (%s)", recipe.key, describe(recipe))
    try:
        async with asyncio.timeout(limits.wall_s):
            building = _Build(recipe, base, folder, store, workshop)
            await building.fetch_debs()
            seen = Image(base.key, trees, base.config, base.passwd, base.group, base.host)
            async with opener(limits.spec(network), seen, workshop) as building.box:
                await building.within(limits)
    except TimeoutError as error:
        raise BuildError(
            f"image {recipe.key}: the build was not done in {limits.wall_s:g} s"
        ) from error
    kept = await asyncio.to_thread(_finish, folder, trees, first_id)
    parsed = recipe.parsed
    config = base.config
    if parsed is not None:
        config = Config(
            env={**config.env, **parsed.env},
            workdir=parsed.workdir or config.workdir,
            user=parsed.user or config.user,
            entrypoint=config.entrypoint,
        )
    log.info("image %s: built in %.1f s", recipe.key, time.monotonic() - began)
    return Entry(
        key=recipe.key,
        kind="layer",
        source=describe(recipe),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        size_bytes=tree_bytes(folder),
        trees=kept,
        base=recipe.base or "host",
        config=config,
    )


def describe(recipe: Recipe) -> str:
    """A recipe in one line, for people."""
    words = [f"{name}={' '.join(value)}" for name, value in
             (("apt", recipe.apt), ("packages", recipe.packages)) if value]  # fmt: skip
    if recipe.text:
        words.insert(0, "dockerfile")
    if recipe.setup:
        words.append(f"setup={len(recipe.setup)}")
    return f"{recipe.base or 'host'}: {', '.join(words)}"


def _workshop(
    folder: Path, trees: tuple[Tree, ...], base: Image, first_id: int, disk_mb: int
) -> layout.Workshop:
    """Folders for what the build writes and for what it gets."""
    shop = folder / "shop"
    (folder / "inputs").mkdir(mode=0o755)
    made = [shop, shop / "upper", shop / "work"]
    made += [shop / kind / str(at) for kind in ("upper", "work") for at in range(len(trees))]
    for path in made:
        path.mkdir(mode=0o755)
    version = layout.python().version
    for at, tree in enumerate(trees):
        upper = shop / "upper" / str(at)
        inside = {
            "/usr": f"local/lib/python{version}/dist-packages local/bin",
            "/opt/python": f"lib/python{version}/site-packages bin",
        }.get(tree.target if base.host else "", "")
        for place in inside.split():
            # The layer's own, so that an ordinary user may write there, too.
            (upper / place).mkdir(parents=True, exist_ok=True, mode=0o755)
        if tree is DPKG:
            # The users whom the host's own exceptions name are not known here.
            (upper / "statoverride").touch(mode=0o644)
        if tree.target == "/opt/python":
            # As in every sandbox: the interpreter without the packages of its owner.
            packages = upper / f"lib/python{version}/site-packages"
            os.setxattr(packages, OPAQUE[not first_id], b"y")
        if first_id:
            for top, _, files in os.walk(upper):
                for own in (top, *(os.path.join(top, name) for name in files)):
                    os.chown(own, first_id, first_id)
    return layout.Workshop(str(shop), str(folder / "inputs"), disk_mb)


class _Build:
    """One build in its sandbox."""

    def __init__(
        self, recipe: Recipe, base: Image, folder: Path, store: Store, workshop: layout.Workshop
    ) -> None:
        self.recipe = recipe
        self.base = base
        self.folder = folder
        self.store = store
        self.shop = workshop
        self.box: NativeSandbox

    async def fetch_debs(self) -> None:
        names = tuple(n for s in self.recipe.steps if isinstance(s, Apt) for n in s.names)
        if names:
            log.info("image %s: fetching %s", self.recipe.key, " ".join(names))
            root = "/" if self.base.host else self.base.trees[0].lowers[-1]
            await fetch.debs(names, root, Path(self.shop.inputs), self.store)

    async def within(self, limits: BuildLimits) -> None:
        """All steps, unless the layer grows too large."""
        working = asyncio.ensure_future(self._steps())
        try:
            took_s = 0.0
            while not working.done():
                # A large layer takes long to measure: never more than a tenth of the time.
                await asyncio.wait([working], timeout=max(WATCH_S, 10 * took_s))
                began = time.monotonic()
                used = await asyncio.to_thread(tree_bytes, Path(self.shop.folder, "upper"))
                took_s = time.monotonic() - began
                if used > limits.disk_mb << 20:
                    raise BuildError(
                        f"image {self.recipe.key}: the layer grew to {used >> 20} MB; a build's "
                        f"disk_mb is {limits.disk_mb}"
                    )
            working.result()
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await working

    async def _steps(self) -> None:
        steps = self.recipe.steps
        for number, step in enumerate(steps, 1):
            label = _label(step)
            log.info("image %s: step %d of %d: %s", self.recipe.key, number, len(steps), label)
            try:
                await self._step(step)
            except OSError as error:
                if isinstance(error, SandboxError):
                    raise
                raise BuildError(f"image {self.recipe.key}, {label}: {error}") from error

    async def _step(self, step: Step) -> None:
        if isinstance(step, Run):
            user = await self._user(step.user)
            await self._run(step.argv, step.label, {"HOME": user.home, **step.env}, step.cwd, user)
        elif isinstance(step, Copy):
            await self._copy(step)
        elif isinstance(step, Folder):
            await self._make_folder(step.path)
        elif isinstance(step, Packages):
            await self._packages(step)
        else:
            await self._apt(step)

    async def _run(
        self,
        argv: tuple[str, ...],
        label: str,
        env: dict[str, str],
        cwd: str = "/",
        user: User | None = None,
    ) -> ExecResult:
        self.box.uid, self.box.gid = (user.uid, user.gid) if user else (0, 0)
        try:
            run = await self.box.exec(argv, env=env, cwd=cwd)
        finally:
            self.box.uid = self.box.gid = 0
        if run.ok:
            return run
        how = f"killed by its limit ({run.killed})" if run.killed else f"exit code {run.exit_code}"
        text = (run.text + run.error_text).strip()
        raise BuildError(f"image {self.recipe.key}, {label}: {how}\n{text[-TAIL:]}")

    async def _user(self, name: str) -> User:
        """As the image knows its users at this moment."""
        if name in ("root", "0"):
            return User("root", 0, 0, "/root")
        texts = []
        for path in ("/etc/passwd", "/etc/group"):
            try:
                texts.append((await self.box.read(path)).decode("utf-8", "replace"))
            except FileNotFoundError:
                texts.append("")
        return Image("", (), passwd=texts[0], group=texts[1]).user(name)

    async def _make_folder(self, path: str) -> None:
        if path == "/":
            return
        # By the supervisor, who needs no program of the base for it.
        mark = f"{path}/.quintain"
        await self.box.write(mark, b"")
        os.close(await self.box.open_file(mark, wire.TAKE))

    async def _copy(self, step: Copy) -> None:
        owner = await self._user(step.owner) if step.owner else None
        self.box.uid, self.box.gid = (owner.uid, owner.gid) if owner else (0, 0)
        try:
            for name, data in step.files:
                target = step.target + name if step.target.endswith("/") else step.target
                await self._put(target, data, 0o644 if step.mode is None else step.mode)
            for source, target in self.recipe.copied(step):
                path = Path(self.recipe.folder, source)
                kind, data = await asyncio.to_thread(_taken, path)
                if stat.S_ISLNK(kind):
                    await self._make_folder(os.path.dirname(target))
                    argv = ("ln", "-sfn", data.decode(), target)
                    await self._run(argv, step.label, {})
                    continue
                mode = 0o755 if kind & 0o111 else 0o644
                await self._put(target, data, mode if step.mode is None else step.mode)
        finally:
            self.box.uid = self.box.gid = 0

    async def _put(self, target: str, data: bytes, mode: int) -> None:
        if self.box.uid:
            # What lies there may belong to another; a build replaces it all the same.
            with contextlib.suppress(FileNotFoundError):
                os.close(await self.box.open_file(target, wire.TAKE))
        await self.box.write(target, data, mode=mode)

    async def _packages(self, step: Packages) -> None:
        found = await self.box.exec(["python3", "-c", fetch.PROBE])
        if not found.ok:
            raise BuildError(
                f"image {self.recipe.key}, packages: no python3 in the base "
                f"({found.error_text.strip()[-200:]})"
            )
        version, libc, libc_version = found.text.split()
        python = {"version": version, "libc": libc, "libc_version": libc_version}
        await fetch.wheels(step.names, python, Path(self.shop.inputs))
        await self._run((*PIP, *step.names), _label(step), PIP_ENV)

    async def _apt(self, step: Apt) -> None:
        folder = Path(self.shop.inputs, "debs")
        found = sorted(name for name in os.listdir(folder) if name.endswith(".deb"))
        names = [f"{layout.BUILD_INPUTS}/debs/{name}" for name in found]
        if not names:
            return  # the base has them all
        argv = ("dpkg", "--install", *names)
        try:
            await self._run(argv, _label(step), DPKG_ENV)
        except BuildError:
            # In one go dpkg keeps no order between packages that need each other unpacked first.
            await self._run(argv, _label(step), DPKG_ENV)


def _taken(path: Path) -> tuple[int, bytes]:
    """Mode and content of a file of the context, or a link and its target."""
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode):
        return state.st_mode, os.readlink(path).encode()
    return state.st_mode, path.read_bytes()


def _label(step: Step) -> str:
    if isinstance(step, Apt):
        return f"apt {' '.join(step.names)}"
    if isinstance(step, Packages):
        return f"packages {' '.join(step.names)}"
    return step.label


def _finish(folder: Path, trees: tuple[Tree, ...], first_id: int) -> dict[str, str]:
    """Makes a layer of what the build wrote; place inside to the folder of the entry."""
    kept: dict[str, str] = {}
    for at, tree in enumerate(trees):
        upper = folder / "shop" / "upper" / str(at)
        if tree is DPKG:
            continue
        if tree.target == "/":
            for place in TEMPORARY:
                _empty(upper, place)
        settle(upper, first_id)
        name = FOLDERS.get(tree.target) or f"tree{at}"
        os.rename(upper, folder / name)
        kept[tree.target] = name
    remove_tree(folder / "shop")
    remove_tree(folder / "inputs")
    return kept


def _empty(root: Path, place: str) -> None:
    """Removes what lies in a folder of the layer; links on the way are not followed."""
    at = root
    for part in place.split("/"):
        at = at / part
        if at.is_symlink() or not at.is_dir():
            return
    for entry in os.scandir(at):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)


def settle(folder: Path, first_id: int) -> None:
    """Gives files the owners that they have inside; drops what must not lie on the host."""
    stack = [os.fspath(folder)]
    while stack:
        path = stack.pop()
        state = os.lstat(path)
        owners = [
            owner - first_id if first_id <= owner < first_id + layout.RANGE else owner
            for owner in (state.st_uid, state.st_gid)
        ]
        if first_id and owners != [state.st_uid, state.st_gid]:
            os.lchown(path, *owners)
        if stat.S_ISSOCK(state.st_mode):
            os.unlink(path)
        elif stat.S_ISDIR(state.st_mode):
            stack += [entry.path for entry in os.scandir(path)]
        elif stat.S_ISREG(state.st_mode) and (state.st_mode & 0o6000 or first_id):
            os.chmod(path, state.st_mode & 0o1777)
