"""Whole folders into a sandbox and out of it, byte for byte, and never through a link.

Into: the host's side is trusted, the sandbox's is not; each file is written by the supervisor,
inside. Out of: the candidate may have laid links and change the tree meanwhile; the walk enters one
name at a time through descriptors, and on the host only regular files and folders are made.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import Protocol

from quintain.errors import SandboxError
from quintain.protocols import Entry, Transfer
from quintain.sandbox.listing import MAX_DEPTH

MAX_ENTRIES = 100_000
COPY_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Named(Protocol):
    """A sandbox whose files are read and written by their names."""

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """What lies under a folder."""
        ...

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file."""
        ...

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders."""
        ...


async def upload(sandbox: Named, source: Path, target: str) -> Transfer:
    """See `quintain.protocols.Transfers.upload`."""
    found, skipped = await asyncio.to_thread(_leaves, source)
    size = 0
    for shown, path, mode in found:
        data = await asyncio.to_thread(path.read_bytes)
        where = f"{target.rstrip('/')}/{shown or source.name}"
        if not shown and not target.endswith(("/", ".")):
            where = target
        await sandbox.write(where, data, mode=mode)
        size += len(data)
    return Transfer(len(found), size, tuple(skipped))


def _leaves(source: Path) -> tuple[list[tuple[str, Path, int]], list[str]]:
    """Files as (path below the source, where it really is, mode), and what is left out."""
    root = source.resolve(strict=True)
    if root.is_file():
        return [("", root, stat.S_IMODE(root.stat().st_mode))], []
    found, skipped = [], []
    for folder, names, leaves in os.walk(root):
        names.sort()
        for name in sorted((*leaves, *(one for one in names if Path(folder, one).is_symlink()))):
            path = Path(folder, name)
            shown, real = str(path.relative_to(root)), path.resolve()
            if real.is_file() and real.is_relative_to(root):
                found.append((shown, real, stat.S_IMODE(real.stat().st_mode)))
            else:
                skipped.append(shown)
    return found, skipped


async def download_named(sandbox: Named, source: str, target: Path, max_bytes: int) -> Transfer:
    """The same as `download` where files come by name; nothing of the names is believed."""
    try:
        found = await sandbox.entries(source, max_entries=MAX_ENTRIES)
    except NotADirectoryError:
        data = await sandbox.read(source, max_bytes=max_bytes)
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(_put, target, data, 0o644)
        return Transfer(1, len(data))
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    made, skipped, files, size = {""}, [], 0, 0
    for entry in found:
        above, _, name = entry.path.rpartition("/")
        if entry.path.startswith("/") or name in ("", ".", "..") or "\0" in name:
            raise SandboxError(f"the sandbox named a file {entry.path[:80]!r}")
        out = target / entry.path
        if above not in made or out.is_symlink() or entry.kind not in ("file", "folder"):
            skipped.append(entry.path)
        elif entry.kind == "folder":
            await asyncio.to_thread(out.mkdir, exist_ok=True)
            made.add(entry.path)
        else:
            data = await sandbox.read(f"{source}/{entry.path}", max_bytes=max_bytes - size)
            await asyncio.to_thread(_put, out, data, 0o755 if entry.mode & 0o100 else 0o644)
            files, size = files + 1, size + len(data)
    return Transfer(files, size, tuple(skipped))


def _put(target: Path, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(target, flags, mode), "wb") as file:
        file.write(data)


def download(fd: int, name: str, target: Path, max_bytes: int) -> Transfer:
    """Copies what a descriptor of the sandbox is open on; runs in a thread.

    Args:
        fd: of a folder, or of a regular file.
        name: of the file, for messages.
        target: on the host.
        max_bytes: of all files together.
    """
    copy = _Copy(max_bytes)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        copy.folder(fd, target, "", 0)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        copy.file(fd, target, name)
    return Transfer(copy.files, copy.size, tuple(sorted(copy.skipped)))


class _Copy:
    """Copies out, and counts."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._entries = 0
        self.files, self.size = 0, 0
        self.skipped: list[str] = []

    def folder(self, fd: int, target: Path, shown: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"deeper than {MAX_DEPTH} folders", shown)
        target.mkdir(parents=depth == 0, exist_ok=True)
        for name in sorted(os.listdir(fd)):
            self._entries += 1
            if self._entries > MAX_ENTRIES:
                raise OSError(errno.EFBIG, f"more than {MAX_ENTRIES} entries", shown)
            where = f"{shown}/{name}" if shown else name
            state = os.stat(name, dir_fd=fd, follow_symlinks=False)
            into, out = stat.S_ISDIR(state.st_mode), target / name
            if out.is_symlink() or not (into or stat.S_ISREG(state.st_mode)):
                self.skipped.append(where)
                continue
            inner = os.open(name, _FOLDER if into else _FILE, dir_fd=fd)
            try:
                if into:
                    self.folder(inner, out, where, depth + 1)
                elif stat.S_ISREG(os.fstat(inner).st_mode):
                    self.file(inner, out, where)
                else:
                    self.skipped.append(where)
            finally:
                os.close(inner)

    def file(self, fd: int, target: Path, shown: str) -> None:
        mode = 0o755 if os.fstat(fd).st_mode & 0o100 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        out = os.open(target, flags, mode)
        try:
            while piece := os.read(fd, COPY_BYTES):
                self._left -= len(piece)
                if self._left < 0:
                    raise OSError(errno.EFBIG, "more bytes than allowed", shown)
                self.size += len(piece)
                view = memoryview(piece)
                while view:
                    view = view[os.write(out, view) :]
        finally:
            os.close(out)
        self.files += 1
