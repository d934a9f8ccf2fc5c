"""What a native sandbox has written, as a value: taken from the writable layer, put into another.

While every process stands still, the owner walks the layer through a descriptor, entering one name
at a time and following nothing. What it finds is kept in this process: the names in a tree, the
contents in one file in memory that goes with the process, however that ends. A new sandbox hands
out a descriptor of its empty layer before anything runs in it, and the owner fills it.

Kept: files (holes as holes), folders, links, hard links, pipes, socket names, modes, owners (as
they are inside), times, `user.*` attributes, and in an image's layer what was deleted or replaced.
Not kept: processes, `/dev` with `/dev/shm`, device nodes, set-uid and set-gid bits, other
attributes (access lists, file capabilities).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from dataclasses import dataclass, field
from typing import Literal

from quintain.errors import SandboxError
from quintain.sandbox.layout import Ids
from quintain.task import SandboxSpec

MAX_DEPTH = 200
PAGE = 4096
COPY_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
"""Marks a folder of an image's layer that hides the one below it."""

Kind = Literal["folder", "file", "link", "hard link", "pipe", "socket", "deleted"]


@dataclass(slots=True)
class Node:
    """One name of the tree."""

    kind: Kind
    mode: int
    owner: tuple[int, int]
    """uid and gid inside; ids of the host that nobody inside has, as −1 − id."""
    mtime_ns: int
    size: int = 0
    target: bytes = b""
    """Of a link; of a hard link the path of the name that came first."""
    extents: list[tuple[int, int, int]] = field(default_factory=list)
    """Where in the file, how many bytes, where in the snapshot's memory."""
    attributes: dict[str, bytes] = field(default_factory=dict)
    names: dict[bytes, Node] = field(default_factory=dict)
    """Of a folder, sorted."""
    first: Node | None = None
    """Of a hard link: what it is another name of."""


class Snapshot:
    """The files of a sandbox at one moment; opens new ones and is a context manager.

    It is a value: the sandbox may go on or be closed. It lies in this process's memory (at most
    `disk_mb` of contents) and goes with it, at `close`, or when nobody holds it any more.
    """

    def __init__(self, spec: SandboxSpec, root: Node, memory: int) -> None:
        self.spec = spec
        """Of the sandbox that it was taken from."""
        self._root = root
        self._memory = memory
        self._digest = ""
        self._end = weakref.finalize(self, os.close, memory)

    @property
    def size_bytes(self) -> int:
        """Contents held in memory."""
        return os.fstat(self._open_memory()).st_size

    @property
    def digest(self) -> str:
        """Of names, kinds, modes, owners and contents; times do not count."""
        if not self._digest:
            self._digest = _digest(self._root, self._open_memory())
        return self._digest

    def fits(self, spec: SandboxSpec) -> bool:
        """Whether a sandbox of that spec has the base that lies under this."""
        parts = ("image", "packages", "apt", "setup", "dockerfile")
        return all(getattr(spec, part) == getattr(self.spec, part) for part in parts)

    def fill(self, layer: int, ids: Ids) -> None:
        """Makes an empty layer hold the same.

        Raises:
            SandboxError: it does not fit.
        """
        memory = self._open_memory()
        try:
            _Filler(layer, memory, ids).fill(self._root)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SandboxError(
                    f"a snapshot of {self.size_bytes} bytes does not fit: give more disk_mb"
                ) from error
            raise SandboxError(f"a snapshot cannot be put back: {error}") from error

    def close(self) -> None:
        """Frees the memory; may be called twice."""
        self._end()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_memory(self) -> int:
        if not self._end.alive:
            raise ValueError("the snapshot was closed")
        return self._memory


def take(layer: int, spec: SandboxSpec, ids: Ids, *, overlay: bool) -> Snapshot:
    """The snapshot of a layer in which nothing moves; runs in a thread.

    Args:
        layer: a descriptor of it.
        spec: of the sandbox.
        ids: of the sandbox.
        overlay: whether it lies over an image.

    Raises:
        OSError: a folder is deeper than `MAX_DEPTH`, or cannot be read.
    """
    memory = os.memfd_create("snapshot", os.MFD_CLOEXEC)
    upper = os.open("upper" if overlay else ".", _FOLDER, dir_fd=layer)
    try:
        root = _Walker(memory, ids, os.fstat(upper).st_dev, overlay).folder(upper, b"", 0)
    except BaseException:
        os.close(memory)
        raise
    finally:
        os.close(upper)
    return Snapshot(spec, root, memory)


class _Walker:
    """Reads a tree."""

    def __init__(self, memory: int, ids: Ids, device: int, overlay: bool) -> None:
        self._memory, self._ids, self._device, self._overlay = memory, ids, device, overlay
        self._at = 0
        self._first: dict[int, tuple[bytes, Node]] = {}

    def folder(self, fd: int, path: bytes, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"deeper than {MAX_DEPTH} folders")
        node = self._node("folder", os.fstat(fd))
        node.attributes = self._attributes(fd)
        for name in sorted(os.fsencode(entry) for entry in os.listdir(fd)):
            if not path and name in (b"dev", b"proc", b"sys"):
                continue
            state = os.stat(name, dir_fd=fd, follow_symlinks=False)
            found = None
            if state.st_dev == self._device:
                found = self._child(fd, name, path + b"/" + name, state, depth)
            if found is not None:
                node.names[name] = found
        return node

    def _child(
        self, fd: int, name: bytes, path: bytes, state: os.stat_result, depth: int
    ) -> Node | None:
        mode = state.st_mode
        if stat.S_ISDIR(mode):
            inner = self._open(fd, name, state, _FOLDER, 0o500)
            try:
                node = self.folder(inner, path, depth + 1)
                node.mode = stat.S_IMODE(mode)
                return node
            finally:
                if stat.S_IMODE(os.fstat(inner).st_mode) != stat.S_IMODE(mode):
                    os.fchmod(inner, stat.S_IMODE(mode))
                os.close(inner)
        if state.st_ino in self._first:
            first, node = self._first[state.st_ino]
            return Node("hard link", 0, (0, 0), 0, target=first, first=node)
        found = self._leaf(fd, name, state)
        if found is not None and state.st_nlink > 1:
            self._first[state.st_ino] = path, found
        return found

    def _leaf(self, fd: int, name: bytes, state: os.stat_result) -> Node | None:
        mode = state.st_mode
        if stat.S_ISREG(mode):
            return self._file(fd, name, state)
        if stat.S_ISLNK(mode):
            node = self._node("link", state)
            node.target = os.readlink(name, dir_fd=fd)
            return node
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return self._node("pipe" if stat.S_ISFIFO(mode) else "socket", state)
        if stat.S_ISCHR(mode) and state.st_rdev == 0 and self._overlay:
            return self._node("deleted", state)
        return None

    def _file(self, fd: int, name: bytes, state: os.stat_result) -> Node:
        node = self._node("file", state)
        node.size = state.st_size
        file = self._open(fd, name, state, _FILE, 0o400)
        try:
            node.attributes = self._attributes(file)
            at = 0
            while at < node.size:
                try:
                    start = os.lseek(file, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        break
                    raise
                at = min(node.size, os.lseek(file, start, os.SEEK_HOLE))
                node.extents.append((start, at - start, self._at))
                self._copy(file, start, at - start)
        finally:
            os.close(file)
        return node

    def _copy(self, file: int, start: int, length: int) -> None:
        os.lseek(self._memory, self._at, os.SEEK_SET)
        self._at += length
        while length:
            sent = os.sendfile(self._memory, file, start, min(length, COPY_BYTES))
            if not sent:
                raise OSError(errno.EIO, "a file ended early")
            start, length = start + sent, length - sent

    def _open(self, fd: int, name: bytes, state: os.stat_result, flags: int, needs: int) -> int:
        try:
            return os.open(name, flags, dir_fd=fd)
        except PermissionError:
            # Its owner took away the right, which an ordinary user's snapshot needs for a moment.
            os.chmod(name, stat.S_IMODE(state.st_mode) | needs, dir_fd=fd)
            try:
                return os.open(name, flags, dir_fd=fd)
            finally:
                if not stat.S_ISDIR(state.st_mode):
                    os.chmod(name, stat.S_IMODE(state.st_mode), dir_fd=fd)

    def _attributes(self, fd: int) -> dict[str, bytes]:
        kept = {}
        for name in os.listxattr(fd):
            overlays = name.startswith(("trusted.overlay.", "user.overlay."))
            if name in OPAQUE if overlays and self._overlay else name.startswith("user."):
                kept[name] = os.getxattr(fd, name)
        return kept

    def _node(self, kind: Kind, state: os.stat_result) -> Node:
        mode = stat.S_IMODE(state.st_mode)
        if kind != "folder":
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
        owner = (self._inside(state.st_uid), self._inside(state.st_gid))
        return Node(kind, mode, owner, state.st_mtime_ns)

    def _inside(self, number: int) -> int:
        return self._ids.inside(number)


class _Filler:
    """Writes a tree."""

    def __init__(self, layer: int, memory: int, ids: Ids) -> None:
        self._layer, self._memory, self._ids = layer, memory, ids
        self._device = os.fstat(layer).st_dev

    def fill(self, root: Node) -> None:
        self._inside_folder(self._layer, root, top=True)

    def _inside_folder(self, fd: int, node: Node, *, top: bool = False) -> None:
        for name in map(os.fsencode, os.listdir(fd)):
            if name not in node.names and not (top and name in (b"dev", b"proc", b"sys")):
                self._remove(fd, name)
        for name, child in node.names.items():
            self._put(fd, name, child)
        for attribute, value in node.attributes.items():
            os.setxattr(fd, attribute, value)
        self._own(node, fd)
        os.fchmod(fd, node.mode)
        os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))

    def _remove(self, fd: int, name: bytes) -> None:
        """What a fresh sandbox has and this one had not any more; mounts stay."""
        state = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if state.st_dev != self._device:
            return
        if not stat.S_ISDIR(state.st_mode):
            os.unlink(name, dir_fd=fd)
            return
        inner = os.open(name, _FOLDER, dir_fd=fd)
        try:
            for below in map(os.fsencode, os.listdir(inner)):
                self._remove(inner, below)
            kept = os.listdir(inner)
        finally:
            os.close(inner)
        if not kept:
            os.rmdir(name, dir_fd=fd)

    def _put(self, fd: int, name: bytes, node: Node) -> None:
        if node.kind == "folder":
            try:
                os.mkdir(name, 0o700, dir_fd=fd)
            except FileExistsError:
                state = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISDIR(state.st_mode):
                    os.unlink(name, dir_fd=fd)
                    os.mkdir(name, 0o700, dir_fd=fd)
            inner = os.open(name, _FOLDER, dir_fd=fd)
            try:
                self._inside_folder(inner, node)
            finally:
                os.close(inner)
            return
        try:
            self._make(fd, name, node)
        except FileExistsError:
            self._remove(fd, name)
            self._make(fd, name, node)

    def _make(self, fd: int, name: bytes, node: Node) -> None:
        if node.kind == "file":
            self._file(fd, name, node)
            return
        if node.first is not None:
            self._link(fd, name, node, node.first)
            return
        if node.kind == "link":
            os.symlink(node.target, name, dir_fd=fd)
        else:
            kinds = {"pipe": stat.S_IFIFO, "socket": stat.S_IFSOCK, "deleted": stat.S_IFCHR}
            os.mknod(name, kinds[node.kind] | node.mode, dir_fd=fd)
        self._own(node, name, fd)
        if node.kind in ("pipe", "socket"):
            os.chmod(name, node.mode, dir_fd=fd)
        times = (node.mtime_ns, node.mtime_ns)
        os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)

    def _link(self, fd: int, name: bytes, node: Node, first: Node) -> None:
        source = node.target.lstrip(b"/")
        try:
            os.link(source, name, src_dir_fd=self._layer, dst_dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
                raise
            # In a folder closed to its owner, or too deep for one path: a copy.
            self._make(fd, name, first)

    def _file(self, fd: int, name: bytes, node: Node) -> None:
        file = os.open(name, _NEW, 0o600, dir_fd=fd)
        try:
            os.ftruncate(file, node.size)
            for start, length, at in node.extents:
                os.lseek(file, start, os.SEEK_SET)
                while length:
                    sent = os.sendfile(file, self._memory, at, min(length, COPY_BYTES))
                    if not sent:
                        raise OSError(errno.EIO, "a snapshot is shorter than it says")
                    at, length = at + sent, length - sent
            for attribute, value in node.attributes.items():
                os.setxattr(file, attribute, value)
            self._own(node, file)
            os.fchmod(file, node.mode)
            os.utime(file, ns=(node.mtime_ns, node.mtime_ns))
        finally:
            os.close(file)

    def _own(self, node: Node, what: int | bytes, fd: int | None = None) -> None:
        if not self._ids.rootless:
            uid, gid = map(self._ids.outside, node.owner)
            os.chown(what, uid, gid, dir_fd=fd, follow_symlinks=isinstance(what, int))


def _digest(root: Node, memory: int) -> str:
    found = hashlib.blake2b(digest_size=16)

    def add(*parts: bytes | int) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else b"%d" % part
            found.update(b"%d:" % len(data) + data)

    def node(one: Node) -> None:
        add(one.kind.encode(), one.mode, *one.owner, one.size, one.target)
        for name, value in sorted(one.attributes.items()):
            add(name.encode(), value)
        for start, length, at in one.extents:
            for offset in range(0, length, PAGE):
                page = os.pread(memory, min(PAGE, length - offset), at + offset)
                if page.strip(b"\0"):
                    # Where a hole begins is the file system's business; zeros are not hashed.
                    add(start + offset, page.rstrip(b"\0"))
        add(len(one.names))
        for below, child in one.names.items():
            add(below)
            node(child)

    node(root)
    return found.hexdigest()
