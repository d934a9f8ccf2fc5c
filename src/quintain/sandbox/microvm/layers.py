"""A guest's read-only disks: squashfs files made of folders once per content, kept in the cache.

A folder's content is told by the names, sizes, modes, owners and times of what is in it. A file is
made under another name and renamed, so what is there is whole; concurrent makers waste work, no
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
from dataclasses import dataclass, field
from pathlib import Path

from quintain.errors import IsolationError, SandboxError
from quintain.record import digest
from quintain.sandbox import build, layout
from quintain.task import SandboxSpec

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
SEARCHED = ("/usr/lib", "/usr/share", "/usr/local", "/usr/local/lib", "/usr/local/share", "/opt")
NEVER_LARGE = ("*-linux-gnu*", "python3*", "gcc", "bin", "lib", "share")
"""In the host's view, other folders right below SEARCHED of more than LARGE_MB are left out (a
cloud SDK, a Java machine); the log names them. An image as `SandboxSpec.image` is taken whole."""
_REAL = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


@dataclass(slots=True)
class _Seen:
    """A folder as it was found."""

    entries: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes below each candidate for being left out."""


def folder() -> Path:
    """Where the files lie."""
    return build.cache_folder().parent / "microvm" / "layers"


def of(spec: SandboxSpec) -> list[tuple[str, Path]]:
    """The disks of a spec, made now if they must be: where each is mounted, and its file.

    Raises:
        IsolationError: there is no mksquashfs.
        SandboxError: it failed.
    """
    if spec.image is not None:
        return [("", _made([os.path.realpath(spec.image)], (), whole=True))]
    sources = ["/usr", *(name for name in _REAL if os.path.isdir(name) and not _linked(name))]
    found = [("", _made(sources, LEFT_OUT, whole=False))]
    prefix = layout.python().prefix
    if prefix:
        packages = f"{prefix}/lib/python{layout.python().version}/site-packages"
        found.append(("/opt/python", _made([prefix], (packages,), whole=True)))
    return found


def links(spec: SandboxSpec) -> list[tuple[str, str]]:
    """Top-level links of the host into `/usr`, for its view: target and path."""
    if spec.image is not None:
        return []
    return [(os.readlink(name), name) for name in _REAL if _linked(name)]


def _linked(name: str) -> bool:
    return os.path.islink(name)


def _made(sources: Sequence[str], left_out: Sequence[str], *, whole: bool) -> Path:
    seen = _Seen()
    for source in sources:
        _look(source, left_out, seen, whole)
    large = [path for path, size in seen.sizes.items() if size > LARGE_MB << 20]
    key = digest(*sources, *left_out, *large, str(whole), *COMPRESSION, "\n".join(seen.entries))
    target = folder() / f"{key}.squashfs"
    if target.is_file():
        with contextlib.suppress(OSError):
            os.utime(target)
        return target
    if large:
        log.warning("microVM: the view of the host leaves out %s", ", ".join(sorted(large)))
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _prune(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        draft = Path(name, "layer")
        _run(sources, [*left_out, *large], draft, whole)
        draft.chmod(0o644)
        draft.replace(target)
    return target


def _look(top: str, left_out: Sequence[str], seen: _Seen, whole: bool) -> None:
    for path, state in _walk(top, set(left_out)):
        seen.entries.append(
            f"{path} {state.st_mode:o} {state.st_uid} {state.st_size} {state.st_mtime_ns}"
        )
        if not whole and (under := _candidate(path)):
            seen.sizes[under] = seen.sizes.get(under, 0) + state.st_blocks * 512


def _candidate(path: str) -> str:
    """The folder right below one of SEARCHED that holds the path."""
    for place in sorted(SEARCHED, key=len, reverse=True):
        if path.startswith(place + "/"):
            name = path[len(place) + 1 :].split("/", 1)[0]
            kept = any(fnmatch.fnmatch(name, pattern) for pattern in NEVER_LARGE)
            return "" if kept else f"{place}/{name}"
    return ""


def _walk(top: str, left_out: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    left = [top]
    while left:
        try:
            entries = sorted(os.scandir(left.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.path in left_out:
                continue
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.path, state
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)


def _run(sources: Sequence[str], left_out: Sequence[str], target: Path, whole: bool) -> None:
    program = shutil.which(PROGRAM)
    if program is None:
        raise IsolationError(
            f"no {PROGRAM} on the PATH (Debian: apt-get install squashfs-tools)", ("squashfs",)
        )
    argv = [program, *sources, str(target), *COMPRESSION, "-noappend", "-no-progress", "-quiet"]
    if not whole:
        argv.append("-keep-as-directory")
    if os.geteuid() != 0:
        argv.append("-all-root")
    present = [path for path in left_out if os.path.lexists(path)]
    if present:
        argv += ["-e", *present]
    log.info("microVM: making a disk of %s", ", ".join(sources))
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=MAKE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"no disk could be made of {sources[0]}: {error}") from error
    if run.returncode:
        raise SandboxError(f"no disk could be made of {sources[0]}: {run.stderr.strip()[-500:]}")


def _prune(place: Path) -> None:
    oldest = time.time() - KEEP_DAYS * 86_400
    for file in place.glob("*.squashfs"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()
