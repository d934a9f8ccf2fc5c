"""Unpacking the layers of a foreign image: what is in the archive decides nothing outside the root.

Every path is resolved by the kernel with the new root as `/` (openat2, RESOLVE_IN_ROOT), so that
neither `..` nor a link, nor a link that the archive itself made, leads out of it. Names that try
are refused all the same: no honest archive has them. Device nodes are refused (but for those in
`/dev`, which a sandbox brings itself and which are left out), set-uid bits are dropped: they mean
nothing inside and must not lie on the host.

Whiteouts are those of the OCI image specification (layer.md): `.wh.NAME` hides a name of the layers
below, `.wh..wh..opq` everything in the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from typing import IO

from quintain.errors import ConfigError
from quintain.sandbox.kernel import open_at

HIDDEN, OPAQUE = ".wh.", ".wh..wh..opq"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NAMES = {tarfile.CHRTYPE: "character device", tarfile.BLKTYPE: "block device"}


class Unpacker:
    """Puts layers on top of each other into one folder.

    Args:
        root: an empty folder.
        owners: whether files get the owners of the archive (needs root).
    """

    def __init__(self, root: str, *, owners: bool) -> None:
        self._root = os.open(root, _FOLDER)
        self._owners = owners
        self._made: set[str] = set()
        self._modes: dict[str, tarfile.TarInfo] = {}

    def close(self) -> None:
        """Gives the folders their modes and times, and ends."""
        try:
            for name, member in sorted(self._modes.items(), reverse=True):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    fd = open_at(self._root, name or ".", _FOLDER | os.O_NOFOLLOW)
                    try:
                        # Without owners everything is this user's, who must be able to remove it.
                        os.fchmod(fd, member.mode & 0o1777 | (0 if self._owners else 0o700))
                        os.utime(fd, (member.mtime, member.mtime))
                    finally:
                        os.close(fd)
        finally:
            os.close(self._root)

    def layer(self, stream: IO[bytes], label: str) -> None:
        """One layer: an uncompressed tar.

        Raises:
            ConfigError: it is no tar, or has an entry that is refused; names the entry.
        """
        self._made = set()
        try:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    try:
                        self._member(tar, member)
                    except OSError as error:
                        raise ConfigError(f"{label}: {member.name!r}: {error}") from error
                    except ValueError as error:
                        raise ConfigError(
                            f"{label}: {member.name!r} is refused: {error}"
                        ) from error
        except tarfile.TarError as error:
            raise ConfigError(f"{label} cannot be read: {error}") from error

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = _checked(member.name)
        if not path:
            self._modes[""] = member
            return
        above, _, name = path.rpartition("/")
        if member.ischr() or member.isblk():
            if path.startswith("dev/"):
                return
            raise ValueError(f"it is a {_NAMES[member.type]}")
        folder = self._folder(above)
        try:
            if name == OPAQUE:
                self._clear(folder, above)
            elif name.startswith(HIDDEN):
                hidden = _checked(name.removeprefix(HIDDEN))
                if not hidden or "/" in hidden:
                    raise ValueError("it hides nothing that has a name")
                if _joined(above, hidden) not in self._made:
                    _remove(folder, hidden)
            else:
                self._put(tar, member, folder, name, path)
                self._note(path)
        finally:
            os.close(folder)

    def _note(self, path: str) -> None:
        while path and path not in self._made:
            self._made.add(path)
            path = path.rpartition("/")[0]

    def _folder(self, path: str) -> int:
        """An open folder of the root; made where it is missing."""
        with contextlib.suppress(FileNotFoundError):
            return open_at(self._root, path or ".", _FOLDER)
        above, _, name = path.rpartition("/")
        parent = self._folder(above)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        finally:
            os.close(parent)
        self._note(path)
        return open_at(self._root, path, _FOLDER)

    def _clear(self, folder: int, path: str) -> None:
        for name in os.listdir(folder):
            if _joined(path, name) not in self._made:
                _remove(folder, name)

    def _put(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str, path: str
    ) -> None:
        if member.isdir():
            found = _kind(folder, name)
            if found is None or not stat.S_ISDIR(found):
                _remove(folder, name)
                os.mkdir(name, 0o700, dir_fd=folder)
            self._modes[path] = member
            self._own(member, folder, name)
            return
        if member.islnk():
            # Made before anything is removed: an archive may link a name to itself.
            self._hard_link(member, folder, name, path)
            return
        _remove(folder, name)
        self._modes.pop(path, None)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=folder)
            self._own(member, folder, name)
        elif member.isfifo():
            os.mkfifo(name, member.mode & 0o777, dir_fd=folder)
            self._own(member, folder, name)
        elif member.isreg():
            self._file(tar, member, folder, name)
        else:
            raise ValueError(f"unknown type {member.type!r}")

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        source = tar.extractfile(member)
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
            if source is not None:
                shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            if self._owners:
                os.fchown(file.fileno(), member.uid, member.gid)
            os.fchmod(file.fileno(), member.mode & 0o1777)
            os.utime(file.fileno(), (member.mtime, member.mtime))

    def _hard_link(self, member: tarfile.TarInfo, folder: int, name: str, path: str) -> None:
        target = _checked(member.linkname)
        if target == path:
            return
        above, _, last = target.rpartition("/")
        try:
            there = open_at(self._root, above or ".", _FOLDER)
        except OSError as error:
            raise ValueError(f"a hard link to {target!r}, which is not there") from error
        try:
            kind = _kind(there, last)
            if kind is None or not stat.S_ISREG(kind):
                raise ValueError(f"a hard link to {target!r}, which is no file of the image")
            _remove(folder, name)
            os.link(last, name, src_dir_fd=there, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(there)

    def _own(self, member: tarfile.TarInfo, folder: int, name: str) -> None:
        if self._owners:
            os.chown(name, member.uid, member.gid, dir_fd=folder, follow_symlinks=False)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _checked(path: str) -> str:
    """A path of an archive without `.`; refused when it tries to be elsewhere."""
    if path.startswith("/"):
        raise ValueError("an absolute path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("a path with '..'")
    if "\0" in path:
        raise ValueError("a NUL byte")
    return "/".join(parts)


def _kind(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _remove(folder: int, name: str) -> None:
    kind = _kind(folder, name)
    if kind is None:
        return
    if stat.S_ISDIR(kind):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
