"""A folder of the user's cache, built once and renamed into place, also when two processes try.

Whoever builds holds a lock, so the second waits and finds the work done. A builder that is killed
leaves only a `.building-*` folder, which the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def models_folder() -> Path:
    """Where converted and warm-started models are kept."""
    return Path.home() / ".cache" / "quintain" / "models"


def sync_folder(folder: Path) -> None:
    """Flushes a folder's files and its entries to disk."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def build_once(name: str, build: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """The folder `root/name`, made by `build(temporary folder)` unless it is there already.

    Args:
        name: of the folder: a hash of all that its content depends on.
        build: fills the folder; what it raises passes through and nothing is kept.
        root: None: `models_folder()`.
    """
    root = models_folder() if root is None else root
    final = root / name
    if final.is_dir():
        return final
    root.mkdir(parents=True, exist_ok=True)
    prefix = f".building-{name}-"
    with open(root / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        for left in root.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            build(temporary)
            sync_folder(temporary)
            temporary.chmod(0o755)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return final
