"""An image: read-only folders of the host that make a root file system, and its settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import Field

from quintain.errors import ConfigError
from quintain.record import Record
from quintain.sandbox.kernel import open_at
from quintain.task import SandboxSpec

MOST_BYTES = 1 << 20
"""Of a passwd or group file."""


@dataclass(frozen=True, slots=True)
class User:
    """Who runs commands inside."""

    name: str
    uid: int
    gid: int
    home: str


USERS = {
    "root": User("root", 0, 0, "/root"),
    "sandbox": User("sandbox", 1000, 1000, "/home/sandbox"),
}
PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\n"
    "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
)
GROUP = "root:x:0:\nsandbox:x:1000:\ntty:x:5:\nnogroup:x:65534:\n"


class Config(Record):
    """What an image says about running in it."""

    env: dict[str, str] = Field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    """Kept for whoever wants it; a sandbox starts nothing by itself."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One place inside, and the folders of the host whose union is seen there."""

    target: str
    lowers: tuple[str, ...]
    """Topmost first."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a sandbox is based on."""

    key: str
    """Equal keys: equal content."""
    trees: tuple[Tree, ...]
    """The root first; the others hide what it has at their targets."""
    config: Config = field(default_factory=Config)
    passwd: str = PASSWD
    group: str = GROUP
    host: bool = False
    """Whether the host's own `/usr` is part of it."""

    @property
    def env(self) -> dict[str, str]:
        """Variables for every command."""
        return self.config.env

    def refuse_without_programs(self) -> None:
        """Whatever is asked of a sandbox without programs fails, whoever asks.

        Raises:
            ConfigError: no file in it can be executed.
        """
        if not self.host and not _has_program(self.trees):
            where = ", ".join(path for tree in self.trees for path in tree.lowers)
            raise ConfigError(
                f"the image holds no program: no file below {where} can be executed, so that no "
                "command could run in its sandboxes"
            )

    def settle(self, spec: SandboxSpec) -> SandboxSpec:
        """The spec with the image's workdir and user, where it names none itself."""
        given = spec.model_fields_set
        change: dict[str, str] = {}
        if self.config.workdir and "workdir" not in given:
            change["workdir"] = self.config.workdir
        if self.config.user and "user" not in given:
            change["user"] = self.config.user
        return spec.model_copy(update=change) if change else spec

    def user(self, name: str) -> User:
        """The user of that name, number, or `user:group`.

        Raises:
            ConfigError: the image has no such user.
        """
        who, _, which = name.partition(":")
        accounts = [line.split(":") for line in self.passwd.splitlines()]
        accounts = [fields for fields in accounts if len(fields) >= 6 and fields[2].isdigit()]
        found = next((f for f in accounts if who in (f[0], f[2])), None)
        if found is None and not who.isdigit():
            names = ", ".join(sorted({fields[0] for fields in accounts}))
            raise ConfigError(f"user {name!r}: the image has no such user; it has {names}")
        fields = found or [who, "", who, who, "", "/"]
        gid = self._gid(which, name) if which else int(fields[3] or 0)
        return User(fields[0], int(fields[2]), gid, fields[5] or "/")

    def _gid(self, which: str, name: str) -> int:
        if which.isdigit():
            return int(which)
        for line in self.group.splitlines():
            fields = line.split(":")
            if len(fields) >= 3 and fields[0] == which and fields[2].isdigit():
                return int(fields[2])
        raise ConfigError(f"user {name!r}: the image has no group {which!r}")


def identity(lowers: Sequence[str]) -> tuple[str, str]:
    """The passwd and group files of a root file system, with the users that sandboxes need."""
    return (
        _completed(_content(lowers, "etc/passwd"), PASSWD),
        _completed(_content(lowers, "etc/group"), GROUP),
    )


def _completed(text: str, wanted: str) -> str:
    names = {line.split(":")[0] for line in text.splitlines()}
    missing = [line for line in wanted.splitlines() if line.split(":")[0] not in names]
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join([*lines, *missing]) + "\n"


def _content(lowers: Sequence[str], name: str) -> str:
    """A file of the topmost folder that has it; links stay inside that folder."""
    for lower in lowers:
        root = os.open(lower, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_at(root, name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        finally:
            os.close(root)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.read(fd, MOST_BYTES).decode("utf-8", "replace")
        finally:
            os.close(fd)
    return ""


def of_folder(path: str) -> Image:
    """An image of a folder with a root file system, used where it lies.

    Raises:
        ConfigError: no such folder.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise ConfigError(
            f"image {path!r}: expected a directory with a root file system, found none"
        )
    state = os.stat(real)
    key = f"{real}:{state.st_dev}:{state.st_ino}"
    passwd, group = identity([real])
    return Image(key, (Tree("/", (real,)),), passwd=passwd, group=group)


PROGRAMS = ("bin", "usr/bin", "usr/local/bin", "sbin", "usr/sbin")
"""Looked at first."""


@lru_cache(maxsize=64)
def _has_program(trees: tuple[Tree, ...]) -> bool:
    """Whether any file can be executed; stops at the first."""
    lowers = [path for tree in trees for path in tree.lowers]
    first = [os.path.join(path, place) for path in lowers for place in PROGRAMS]
    return any(_executable_below(path) for path in (*first, *lowers))


def _executable_below(top: str) -> bool:
    for folder, _, names in os.walk(top):
        for name in names:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if stat.S_ISREG(mode) and mode & 0o111:
                return True
    return False
