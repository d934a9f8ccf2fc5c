"""Compiles a C file of ours once per content and compiler into the user's cache folder.

The package stays pure Python: the source is shipped, and whoever has no C compiler gets the Python
launcher, which builds the same walls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from quintain.record import digest

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("box.c")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
COMPILE_S = 60.0


def cache_folder() -> Path:
    """Where compiled helpers lie; made for this user only."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "quintain", "sandbox")


def compiler() -> str | None:
    """The C compiler of this machine."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def helper() -> Path | None:
    """The compiled helper, built now if it must be; None where that cannot be done.

    It is static where there is a static C library: a process of it is forked for every sandbox and
    every command, and each mapping of a shared library costs time and page tables in all of them.
    """
    shared = _target(SOURCE, FLAGS)
    if _usable(shared):  # no static one could be made of this source
        return shared
    return compiled(SOURCE, (*FLAGS, "-static-pie"), optional=True) or compiled(SOURCE, FLAGS)


def library() -> Path | None:
    """The same as a shared object, for interpreters that sandboxes are forked from."""
    return compiled(SOURCE, (*FLAGS, "-shared", "-fPIC"))


def _target(source: Path, flags: tuple[str, ...]) -> Path:
    key = digest(source.read_bytes(), " ".join(flags), os.uname().machine)
    return cache_folder() / f"{source.stem}-{key}"


def compiled(source: Path, flags: tuple[str, ...], *, optional: bool = False) -> Path | None:
    """A program of one C file, built now if it must be; None where that cannot be done.

    Concurrent builds are harmless: each compiles to a name of its own and renames it into place.

    Args:
        source: the file.
        flags: of the compiler.
        optional: whether there is another way where it fails.
    """
    found = compiler()
    target = _target(source, flags)
    if _usable(target):
        return target
    if found is None:
        return None
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = Path(folder, source.stem)
            command = [found, *flags, "-o", str(built), str(source)]
            run = subprocess.run(command, capture_output=True, timeout=COMPILE_S, text=True)
            if run.returncode:
                if not optional:
                    log.warning("%s did not compile: %s", source.name, run.stderr[-2000:])
                return None
            built.chmod(0o755)
            built.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s was not built: %s", source.name, error)
        return None
    return target


def _usable(target: Path) -> bool:
    """Whether it is there, ours, and writable by nobody else."""
    with contextlib.suppress(OSError):
        state = target.stat()
        return state.st_uid == os.geteuid() and not state.st_mode & 0o022
    return False
