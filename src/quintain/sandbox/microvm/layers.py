"""A guest's read-only disks: squashfs files made of folders once per content, kept in the cache.

A folder's content is told by the names, sizes, modes, owners and times of what is in it; that of
the host's `/usr` by its folders alone, whose times change when a package puts a file there. A file
is made under another name and renamed, so what is there is whole; concurrent makers waste work, no
more. Those unused for `KEEP_DAYS` are removed when a new one is made.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from quintain.errors import IsolationError, SandboxError
from quintain.record import digest
from quintain.sandbox import build, layout
from quintain.sandbox.images.image import Image

log = logging.getLogger(__name__)

PROGRAM = "mksquashfs"
MAKE_S = 900.0
KEEP_DAYS = 30
COMPRESSION = ("-comp", "lz4")
"""What an emulated processor unpacks fastest."""
LEFT_OUT = (
    "/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/icons",
    "/usr/share/fonts", "/usr/src", "/usr/lib/debug", "/usr/lib/modules", "/usr/lib/firmware",
)  # fmt: skip
"""Of the host's `/usr`: what programs do without."""
LARGE_MB = 300
SEARCHED = ("/usr/lib", "/usr/share", "/usr/local", "/usr/local/lib", "/usr/local/share")
NEVER_LARGE = ("*-linux-gnu*", "python3*", "gcc", "bin", "lib", "share")
"""In the host's view, other folders right below SEARCHED of more than LARGE_MB are left out (a
cloud SDK, a Java machine); the log names them. An image as `SandboxSpec.image` is taken whole."""


def folder() -> Path:
    """Where the files lie."""
    return build.cache_folder().parent / "microvm" / "layers"


def of(image: Image) -> list[Path]:
    """The disks of an image, made now if they must be: of each tree the topmost folder first.

    Raises:
        IsolationError: there is no mksquashfs.
        SandboxError: it failed.
    """
    return [
        _made(lower, view=image.host and lower not in image.trees[0].lowers and lower == "/usr")
        for tree in image.trees
        for lower in tree.lowers
    ]


def _made(source: str, *, view: bool) -> Path:
    left_out = list(LEFT_OUT) if view else [f"{source}/{name}" for name in _packages(source)]
    owner = "root" if os.geteuid() == 0 else "user"
    seen = "\n".join(_seen(source, set(left_out), folders_only=view))
    key = digest(source, *left_out, str(LARGE_MB), *NEVER_LARGE, owner, *COMPRESSION, seen)
    target = folder() / f"{key}.squashfs"
    if target.is_file():
        with contextlib.suppress(OSError):
            os.utime(target)
        return target
    large = _large(source, set(left_out)) if view else []
    if large:
        log.warning("microVM: the view of the host leaves out %s", ", ".join(large))
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _prune(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        draft = Path(name, "layer")
        _run(source, [*left_out, *large], draft)
        draft.chmod(0o644)
        draft.replace(target)
    return target


def _seen(source: str, left_out: set[str], *, folders_only: bool) -> Iterator[str]:
    """What is there, one line a name."""
    for entry in _walk(source, left_out):
        if folders_only and not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError):
            state = entry.stat(follow_symlinks=False)
            yield f"{entry.path} {state.st_mode:o} {state.st_uid} {state.st_mtime_ns}" + (
                "" if folders_only else f" {state.st_size}"
            )


def _large(source: str, left_out: set[str]) -> list[str]:
    """What is left out of the host's view for its size."""
    sizes: dict[str, int] = {}
    for entry in _walk(source, left_out):
        if under := _candidate(entry.path):
            with contextlib.suppress(OSError):
                used = entry.stat(follow_symlinks=False).st_blocks * 512
                sizes[under] = sizes.get(under, 0) + used
    return sorted(path for path, size in sizes.items() if size > LARGE_MB << 20)


def _packages(source: str) -> tuple[str, ...]:
    """What is left out of the running interpreter's installation: its site-packages."""
    chosen = layout.python()
    if not chosen.prefix or source != chosen.prefix:
        return ()
    return (f"lib/python{chosen.version}/site-packages",)


def _candidate(path: str) -> str:
    """The folder right below one of SEARCHED that holds the path."""
    for place in sorted(SEARCHED, key=len, reverse=True):
        if path.startswith(place + "/"):
            name = path[len(place) + 1 :].split("/", 1)[0]
            kept = any(fnmatch.fnmatch(name, pattern) for pattern in NEVER_LARGE)
            return "" if kept else f"{place}/{name}"
    return ""


def _walk(top: str, left_out: set[str]) -> Iterator[os.DirEntry[str]]:
    left = [top]
    while left:
        try:
            entries = sorted(os.scandir(left.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.path in left_out:
                continue
            yield entry
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)


def _run(source: str, left_out: Sequence[str], target: Path) -> None:
    program = shutil.which(PROGRAM)
    if program is None:
        raise IsolationError(
            f"no {PROGRAM} on the PATH (Debian: apt-get install squashfs-tools)", ("squashfs",)
        )
    argv = [program, source, str(target), *COMPRESSION, "-noappend", "-no-progress", "-quiet"]
    if os.geteuid() != 0:
        argv.append("-all-root")
    present = [path for path in left_out if os.path.lexists(path)]
    if present:
        argv += ["-e", *present]
    log.info("microVM: making a disk of %s", source)
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=MAKE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"no disk could be made of {source}: {error}") from error
    if run.returncode:
        raise SandboxError(f"no disk could be made of {source}: {run.stderr.strip()[-500:]}")


def _prune(place: Path) -> None:
    oldest = time.time() - KEEP_DAYS * 86_400
    for file in place.glob("*.squashfs"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()
