"""Root file systems for containers: the view of the host that needs no image, and imports.

The view is an image of a few kilobytes (an `/etc` of its own, folders, links); the host's `/usr`
and the Python are mounted into it, read-only, as the native backend does.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quintain.errors import ConfigError
from quintain.record import digest
from quintain.sandbox import layout, wire

FOLDERS = {
    "dev": 0o755, "etc": 0o755, "home": 0o755, "home/sandbox": 0o777, "mnt": 0o755, "opt": 0o755,
    "proc": 0o555, "root": 0o700, "run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o1777,
    "usr": 0o755, "var": 0o755, "var/tmp": 0o1777,
}  # fmt: skip
PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class Node:
    """A folder, file or link of a root file system."""

    path: str
    mode: int = 0o755
    data: bytes | None = None
    target: str = ""


def view() -> list[Node]:
    """What a container of the host's own `/usr` has besides the mounts, parents first."""
    nodes = [Node(path, mode) for path, mode in FOLDERS.items()]
    plan = wire.Plan()
    layout.stage_etc(plan, "/etc")
    for step, _, _, _, _, strings in wire.steps(bytes(plan.data)):
        words = [os.fsdecode(string) for string in strings]
        if step == wire.WRITE:
            nodes.append(Node(words[0].lstrip("/"), 0o644, strings[1]))
        elif step == wire.LINK:
            nodes.append(Node(words[1].lstrip("/"), 0o777, None, words[0]))
        elif step == wire.MKDIR and words[0] != "/etc":
            nodes.append(Node(words[0].lstrip("/")))
    for name in PROGRAMS:
        if os.path.islink(f"/{name}"):
            nodes.append(Node(name, 0o777, None, os.readlink(f"/{name}")))
        elif os.path.isdir(f"/{name}"):
            nodes.append(Node(name))
    if layout.python().prefix:
        nodes.append(Node("opt/python"))
    return nodes


def mounts() -> list[tuple[str, str]]:
    """What of the host is mounted into the view, as `(source, target)`, read-only."""
    found = [("/usr", "/usr")]
    found += [
        (f"/{name}", f"/{name}")
        for name in PROGRAMS
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    prefix = layout.python().prefix
    return [*found, (prefix, "/opt/python")] if prefix else found


def tar(nodes: list[Node]) -> bytes:
    """The nodes as a tar: the same bytes every time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for node in nodes:
            member = tarfile.TarInfo(node.path)
            member.mode = node.mode
            if node.target:
                member.type, member.linkname = tarfile.SYMTYPE, node.target
            elif node.data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(node.data)
            archive.addfile(member, io.BytesIO(node.data or b""))
    return buffer.getvalue()


def lay(nodes: list[Node], root: str) -> None:
    """Writes the nodes under a folder."""
    for node in nodes:
        path = f"{root}/{node.path}"
        if node.target:
            os.symlink(node.target, path)
        elif node.data is None:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, node.mode)
        else:
            Path(path).write_bytes(node.data)
            os.chmod(path, node.mode)


def identity(path: str) -> str:
    """The content key of a root file system on disk: a folder, or a tar.

    A folder's is over names, sizes, modes and times of change, so that it need not be read.

    Raises:
        ConfigError: it is neither.
    """
    if os.path.isdir(path):
        return digest("folder", os.path.realpath(path), sorted(_states(path)))
    if os.path.isfile(path) and tarfile.is_tarfile(path):
        with open(path, "rb") as file:
            return digest("tar", hashlib.file_digest(file, "sha256").hexdigest())
    raise ConfigError(f"image {path!r}: expected a folder with a root file system, or a tar of one")


def _states(root: str) -> Iterator[tuple[str, int, int, int]]:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            state = os.lstat(path)
            where = os.fsencode(os.path.relpath(path, root)).hex()
            size = 0 if stat.S_ISDIR(state.st_mode) else state.st_size
            yield where, state.st_mode, size, state.st_mtime_ns


def is_archive_of_images(file: IO[bytes]) -> bool:
    """Whether a tar is what `docker save` writes, or an OCI layout: it has its own manifest."""
    manifests = ("manifest.json", "index.json")
    try:
        with tarfile.open(fileobj=file) as archive:
            return any(member.name.removeprefix("./") in manifests for member in archive)
    finally:
        file.seek(0)
