"""From `SandboxSpec.image` to an image: folders, archives, names, and the view of the host."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import ConfigError, SandboxError
from quintain.record import digest
from quintain.sandbox import layout
from quintain.sandbox.images import image as images
from quintain.sandbox.images.archive import Archive
from quintain.sandbox.images.image import Image, Tree
from quintain.sandbox.images.store import Entry, Lease, Store, tree_bytes

UNPACK_S = 1800.0
VIEW_FOLDERS = (
    "dev", "etc", "home", "mnt", "opt", "proc", "run", "srv", "tmp", "usr", "var", "var/cache",
    "var/lib", "var/log", "var/spool", "var/tmp", "root", "sys",
)  # fmt: skip
MODES = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class Library:
    """Finds images and keeps those that are in use from being removed.

    Args:
        store: None: that of this user.
        rootless: whether sandboxes have one id only, so that owners cannot be kept.
    """

    def __init__(self, store: Store | None = None, *, rootless: bool = False) -> None:
        self.store = store or Store()
        self.rootless = rootless
        self._leases: dict[str, tuple[Entry, Lease]] = {}

    def close(self) -> None:
        """Gives back everything in use."""
        for _, lease in self._leases.values():
            lease.close()
        self._leases.clear()

    def take(
        self,
        key: str,
        make: Callable[[Path], Entry],
        deadline: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Entry:
        """The entry of a key, made if it must be, in use until `close`."""
        if key not in self._leases:
            found = self.store.ensure(key, make, deadline=deadline, stopped=stopped)
            if key in self._leases:
                found[1].close()
            else:
                self._leases[key] = found
        return self._leases[key][0]

    def base(self, name: str | None) -> Image:
        """The image that a name or path stands for; blocks.

        Args:
            name: None: the view of the host.

        Raises:
            ConfigError: nothing has that name.
        """
        if name is None or name == "host":
            return self._view()
        if name == "scratch":
            entry = self.take(digest("scratch"), _scratch, time.monotonic() + UNPACK_S)
            return self.of_entry(entry, [])
        if os.sep in name or os.path.exists(name):
            return self.path(name)
        names = self.store.names()
        found = names.get(name.removesuffix(":latest"))
        if found is None:
            near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4) or list(names)
            raise ConfigError(
                f"image {name!r}: expected a directory with a root file system, a tar of `docker "
                f"save`, an OCI layout, or a name; known names: {', '.join(near) or 'none'} "
                "(quintain images add NAME PATH)"
            )
        if "path" in found:
            return self.path(found["path"])
        if self.store.entry(found["key"]) is None:
            raise ConfigError(f"image {name!r}: it was removed; add or build it again")
        return self.of_key(found["key"])

    def of_key(self, key: str) -> Image:
        """The image of an entry that is there.

        Raises:
            SandboxError: it is gone.
        """

        def gone(_folder: Path) -> Entry:
            raise SandboxError(f"image {key} was removed")

        entry = self.take(key, gone, time.monotonic() + UNPACK_S)
        below = [] if entry.base is None else list(self.base(entry.base).trees)
        return self.of_entry(entry, below, host=entry.base == "host")

    def of_entry(self, entry: Entry, below: list[Tree], *, host: bool = False) -> Image:
        """The image of an entry on top of what lies below it."""
        folder = self.store.folder / entry.key
        lowers = {tree.target: tree.lowers for tree in below}
        for target, name in entry.trees.items():
            lowers[target] = (str(folder / name), *lowers.get(target, ()))
        trees = tuple(Tree(target, lowers[target]) for target in sorted(lowers))
        passwd, group = images.identity(trees[0].lowers)
        return Image(entry.key, trees, entry.config, passwd, group, host)

    def path(self, path: str) -> Image:
        """The image of a folder (used where it lies) or of a foreign image on disk (unpacked).

        Raises:
            ConfigError: it is neither.
        """
        real = os.path.realpath(path)
        layout_file = os.path.join(real, "oci-layout")
        if os.path.isdir(real) and not os.path.isfile(layout_file):
            return images.of_folder(path)
        if not os.path.exists(real):
            raise ConfigError(
                f"image {path!r}: expected a directory with a root file system, a tar of `docker "
                "save` or an OCI image layout, found nothing there"
            )
        return self.of_entry(self.unpacked(real), [])

    def unpacked(self, path: str) -> Entry:
        """The entry of a foreign image on disk, unpacked now if it must be."""
        archive = Archive(path)
        owners = not self.rootless
        key = digest("archive", archive.identity, owners)

        def make(folder: Path) -> Entry:
            (folder / "root").mkdir(mode=0o755)
            archive.unpack(str(folder / "root"), owners=owners)
            return _entry(key, "archive", path, folder, {"/": "root"}, archive)

        try:
            return self.take(key, make, time.monotonic() + UNPACK_S)
        finally:
            archive.close()

    def _view(self) -> Image:
        """The host's `/usr` under a root of our own; its python where that lies elsewhere."""
        files, links = layout.etc_files(), layout.etc_links()
        for name in ("passwd", "group"):
            files[name] = _with_standard(str(files[name]), name)
        chosen = layout.python()
        tops = {n: os.readlink(f"/{n}") for n in LINKS if os.path.islink(f"/{n}")}
        names = sorted(f"{n} {digest(d)}" for n, d in files.items())
        key = digest("view", names, links, tops, chosen.prefix, VIEW_FOLDERS)

        def make(folder: Path) -> Entry:
            _make_view(folder / "root", files, links, tops)
            return _entry(key, "view", "the host's /usr", folder, {"/": "root"})

        entry = self.take(key, make, time.monotonic() + UNPACK_S)
        below = [Tree("/usr", ("/usr",))]
        below += [Tree(f"/{name}", (f"/{name}",)) for name in layout.real_folders()]
        if chosen.prefix:
            below.append(Tree("/opt/python", (chosen.prefix,)))
        return self.of_entry(entry, below, host=True)


def _make_view(
    root: Path, files: dict[str, str | bytes], links: dict[str, str], tops: dict[str, str]
) -> None:
    root.mkdir(mode=0o755)
    for name in (*VIEW_FOLDERS, "opt/python", "etc/alternatives", "home/sandbox"):
        (root / name).mkdir(mode=0o755)
        (root / name).chmod(MODES.get(name, 0o755))
    for name in layout.real_folders():
        (root / name).mkdir(mode=0o755)
    (root / "var/lib/dpkg").mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(root / "home/sandbox", layout.USER_UID, layout.USER_UID)
    for name, data in files.items():
        path = root / "etc" / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        path.chmod(0o644)
    for name, target in links.items():
        (root / "etc" / name).symlink_to(target)
    for name, target in tops.items():
        (root / name).symlink_to(target)


def _with_standard(text: str, name: str) -> str:
    """With the users that every Debian has and its packages expect, where this is one."""
    master = Path(f"/usr/share/base-passwd/{name}.master")
    if not master.is_file():
        return text
    known = {line.split(":")[0] for line in text.splitlines()}
    more = master.read_text(encoding="utf-8").replace(":*:", ":x:").splitlines()
    return text + "".join(f"{line}\n" for line in more if line.split(":")[0] not in known)


def _scratch(folder: Path) -> Entry:
    (folder / "root").mkdir(mode=0o755)
    return _entry(digest("scratch"), "view", "scratch", folder, {"/": "root"})


def _entry(
    key: str,
    kind: str,
    source: str,
    folder: Path,
    trees: dict[str, str],
    archive: Archive | None = None,
) -> Entry:
    return Entry(
        key=key,
        kind=kind,
        source=source,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        size_bytes=tree_bytes(folder),
        trees=trees,
        config=archive.config if archive is not None else images.Config(),
    )


def host_identity(*, packages: bool) -> str:
    """What the host's view is, for the keys of what is built on it.

    Args:
        packages: whether the host's package database matters, too.
    """
    parts: list[object] = [layout.python().prefix, layout.python().version, os.uname().machine]
    for path in ("/etc/os-release", *(["/var/lib/dpkg/status"] if packages else [])):
        parts.append(Path(path).read_bytes() if os.path.isfile(path) else "")
    return digest("host", *parts)


def folder_identity(path: str) -> str:
    """What a folder used as a base is: names, kinds, sizes and times of all in it."""
    lines: list[str] = []
    stack = [path]
    while stack:
        top = stack.pop()
        for entry in sorted(os.scandir(top), key=lambda entry: entry.name):
            state = entry.stat(follow_symlinks=False)
            name = os.path.relpath(entry.path, path)
            lines.append(f"{name} {state.st_mode:o} {state.st_size} {state.st_mtime_ns}")
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
    return digest("folder", lines)
