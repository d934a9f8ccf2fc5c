"""Where images lie on this machine: entries by content key, names, locks.

::

    ~/.cache/quintain/images/          or $QUINTAIN_CACHE/images
      KEY/                             an entry, complete (it was renamed into place)
        image.json  root/  usr/  …     what it is, and its folders (`Entry.trees`)
      making/KEY/                      an entry that is being made
      locks/KEY                      held shared by who uses an entry, alone by who changes it
      names/NAME.json                  what a name stands for
      wheels/  debs/                   what was downloaded

A lock is the kernel's (flock): when its holder dies, by SIGKILL too, it is free, and what lies in
`making` under a free lock is rubbish that the next one removes. The folder is for this user only:
layers hold files that belong to root inside.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from quintain.errors import ConfigError, SandboxError, SandboxTimeout
from quintain.record import Record
from quintain.sandbox.images.image import Config

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(:[a-zA-Z0-9._-]+)?")
WAIT_S = 0.1


def cache_folder() -> Path:
    """`$QUINTAIN_CACHE`, or `quintain` in the user's cache folder."""
    own = os.environ.get("QUINTAIN_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(own) if own else Path(base, "quintain")


class Entry(Record):
    """What `image.json` says of an entry."""

    key: str
    kind: str
    """"layer" (built), "archive" (unpacked), "debian" (by debootstrap), "view" (of the host)."""
    source: str
    """For people: what it was made of."""
    made: str
    """UTC."""
    size_bytes: int
    trees: dict[str, str]
    """Place inside to the folder in the entry."""
    base: str | None = None
    """Of a layer: what it lies on, as the recipe names it."""
    config: Config = Field(default_factory=Config)


@dataclass(slots=True)
class Lease:
    """An entry in use: nobody removes it until the lease is closed or its process ends."""

    key: str
    _fd: int

    def close(self) -> None:
        """Gives it back; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Store:
    """The images of this machine and user.

    Args:
        folder: None: `images` in the cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "images"

    def make_folders(self) -> None:
        """Makes the folders, for this user only.

        Raises:
            SandboxError: they cannot be made, or belong to someone else.
        """
        try:
            for name in ("", "making", "locks", "names", "apt"):
                (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            state = self.folder.stat()
            if state.st_uid != os.geteuid() or state.st_mode & 0o077:
                raise SandboxError(
                    f"the image folder {self.folder} must belong to this user and be closed to "
                    "others (chmod 700)"
                )
        except OSError as error:
            raise SandboxError(
                f"no folder for images: {error}; set QUINTAIN_CACHE to one that can be written"
            ) from error

    # --- entries --------------------------------------------------------------------------------

    def entry(self, key: str) -> Entry | None:
        """The entry of that key, if it is there."""
        try:
            return Entry.model_validate_json((self.folder / key / "image.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            raise SandboxError(
                f"the image {key} in {self.folder} was made by another version: remove its folder"
            ) from error

    def entries(self) -> list[Entry]:
        """All entries, sorted by when they were made."""
        found = []
        if self.folder.is_dir():
            for name in os.listdir(self.folder):
                if (self.folder / name / "image.json").is_file():
                    entry = self.entry(name)
                    if entry is not None:
                        found.append(entry)
        return sorted(found, key=lambda entry: entry.made)

    def used(self, key: str) -> float:
        """When an entry was last taken into use (seconds since the epoch)."""
        try:
            return (self.folder / "locks" / key).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _lock(self, key: str) -> int:
        path = self.folder / "locks" / key
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def lease(self, key: str) -> tuple[Entry, Lease] | None:
        """Takes an entry into use; None when it is not there."""
        if self.entry(key) is None:
            return None
        fd = self._lock(key)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        entry = self.entry(key)  # it may have gone before the lock was ours
        if entry is None:
            os.close(fd)
            return None
        os.utime(fd)
        return entry, Lease(key, fd)

    def ensure(
        self,
        key: str,
        make: Callable[[Path], Entry],
        *,
        deadline: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[Entry, Lease]:
        """The entry of a key, made now if it must be; one at a time on this machine.

        Blocks: call it in a thread.

        Args:
            key: names the content.
            make: fills the folder that it is given and says what it is.
            deadline: `time.monotonic()` value until which to wait for another maker.
            stopped: whether to wait no longer.

        Raises:
            SandboxTimeout: another process makes it, and is not done in time.
        """
        self.make_folders()
        while True:
            found = self.lease(key)
            if found is not None:
                return found
            fd = self._lock(key)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                if time.monotonic() > deadline or stopped():
                    raise SandboxTimeout(
                        f"image {key}: another process builds it, and was not done in time"
                    ) from None
                time.sleep(WAIT_S)
                continue
            try:
                if self.entry(key) is None:
                    self._make(key, make)
            finally:
                os.close(fd)

    def _make(self, key: str, make: Callable[[Path], Entry]) -> None:
        folder = self.folder / "making" / key
        remove_tree(folder)
        folder.mkdir(mode=0o700)
        try:
            entry = make(folder)
            path = folder / "image.json"
            path.write_text(entry.model_dump_json(indent=1) + "\n", encoding="utf-8")
            # A mere cache: what a power cut could leave empty, the next reader refuses by name.
            os.rename(folder, self.folder / key)
        finally:
            remove_tree(folder)

    def remove(self, key: str) -> bool:
        """Removes an entry that nobody uses; whether it did."""
        fd = self._lock(key)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            # First out of sight in one step, then for good.
            gone = self.folder / "making" / key
            remove_tree(gone)
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.folder / key, gone)
            remove_tree(gone)
            return True
        finally:
            os.close(fd)

    def in_use(self, key: str) -> bool:
        """Whether a living process uses or makes an entry."""
        fd = self._lock(key)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def sweep(self) -> list[str]:
        """Removes what makers that died left behind; returns its keys."""
        removed = []
        making = self.folder / "making"
        for key in os.listdir(making) if making.is_dir() else []:
            fd = self._lock(key)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                remove_tree(making / key)
                removed.append(key)
            finally:
                os.close(fd)
        return removed

    # --- names ----------------------------------------------------------------------------------

    def names(self) -> dict[str, dict[str, str]]:
        """Every name and what it stands for: `{"key": …}` or `{"path": …}`."""
        folder = self.folder / "names"
        paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def name(self, name: str, target: dict[str, str] | None) -> None:
        """Lets a name stand for an entry or a folder; None: forgets it.

        Raises:
            ConfigError: it cannot be a name.
        """
        if not NAME.fullmatch(name) or name in ("host", "scratch"):
            raise ConfigError(
                f"{name!r} cannot be an image's name: expected lower-case letters, digits and "
                "'._-', and neither 'host' nor 'scratch'"
            )
        self.make_folders()
        path = self.folder / "names" / f"{name}.json"
        if target is None:
            path.unlink(missing_ok=True)
            return
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(target), encoding="utf-8")
        new.replace(path)


def remove_tree(folder: Path) -> None:
    """Removes a folder and all in it, also folders that their owner may not read."""
    if not os.path.lexists(folder):
        return

    def unlock(_function: object, path: str, _error: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(os.path.dirname(path), 0o700, follow_symlinks=True)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.chmod(path, 0o700)
                shutil.rmtree(path, onerror=None)
            else:
                os.unlink(path)

    shutil.rmtree(folder, onerror=unlock)


def tree_bytes(folder: Path) -> int:
    """What a folder takes on disk; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    stack = [os.fspath(folder)]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            if state.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                if (state.st_dev, state.st_ino) in seen:
                    continue
                seen.add((state.st_dev, state.st_ino))
            total += state.st_blocks * 512
    return total
