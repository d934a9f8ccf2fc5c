"""A recipe: what is built on which base, and the key that names the result.

Equal recipes have equal keys on every backend and machine: the key is a hash of the base's
identity, of everything asked for, of the content of every file of the context, and of the builder's
version.
The native builder carries out `steps`; a container engine builds `dockerfile()` with `context()`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quintain.errors import ConfigError
from quintain.record import digest
from quintain.sandbox.images.dockerfile import Copy, Folder, Parsed, Run, parse, read
from quintain.task import SandboxSpec

VERSION = 1
"""Of what the builder makes of a recipe; part of every key."""
CONTEXT_BYTES = 2 << 30
CONTEXT_FILES = 100_000
IGNORE = ".dockerignore"


@dataclass(frozen=True, slots=True)
class Apt:
    """Debian packages, by name."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Packages:
    """Python packages, as pip takes them."""

    names: tuple[str, ...]


Step = Run | Copy | Folder | Apt | Packages


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is asked to be built; made by `Recipe.of`."""

    image: str | None
    """`SandboxSpec.image`; None: the host's view, or what the Dockerfile says."""
    apt: tuple[str, ...]
    packages: tuple[str, ...]
    setup: tuple[str, ...]
    text: str
    """Of the Dockerfile; empty: none."""
    folder: str
    """The Dockerfile's context on this machine; empty: it has none."""
    files: tuple[tuple[str, str], ...]
    """Path in the context to the digest of its content and mode, sorted."""
    identity: str
    """What the base is, as the backend knows it."""

    @classmethod
    def of(cls, spec: SandboxSpec, identity: str = "") -> Recipe:
        """The recipe of a spec.

        Args:
            spec: `dockerfile` is the text of one (COPY takes here-documents), or the path of one
                (COPY takes files of its folder, too).
            identity: of the base, as the backend knows it (an image's digest); by default the
                name alone.

        Raises:
            ConfigError: the Dockerfile or its context cannot be read, or both `image` and
                `dockerfile` name a base.
        """
        text, folder = _dockerfile(spec.dockerfile)
        if text and spec.image is not None:
            raise ConfigError(
                f"dockerfile and image={spec.image!r}: the base is named once, by FROM"
            )
        files = _digests(folder) if folder else ()
        return cls(
            spec.image,
            tuple(dict.fromkeys(spec.apt)),
            tuple(dict.fromkeys(spec.packages)),
            spec.setup,
            text,
            folder,
            files,
            identity or spec.image or "",
        )

    @property
    def key(self) -> str:
        """32 hex digits: the content hash. Equal recipes have equal keys."""
        asked = [self.apt, self.packages, self.setup, self.text, self.files]
        return digest(VERSION, self.identity, self.image or "", asked)

    @property
    def parsed(self) -> Parsed | None:
        """The Dockerfile as the native builder reads it.

        Raises:
            ConfigError: it is not of the native subset; names the line.
        """
        return parse(self.text) if self.text else None

    @property
    def base(self) -> str | None:
        """What it is built on: a name or path; None: the host's view.

        Raises:
            ConfigError: see `parsed`.
        """
        found = self.parsed
        name = self.image if found is None else found.base
        return None if name == "host" else name

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything to do, in order: Dockerfile, apt, packages, setup.

        Raises:
            ConfigError: see `parsed`.
        """
        found: list[Step] = list(self.parsed.steps) if self.parsed else []
        if self.apt:
            found.append(Apt(self.apt))
        if self.packages:
            found.append(Packages(self.packages))
        env = self.parsed.env if self.parsed else {}
        for at, line in enumerate(self.setup, 1):
            argv = ("/bin/sh", "-c", line)
            found.append(Run(argv, f"setup {at}: {line[:100]}", env))
        return tuple(found)

    def dockerfile(self, base: str | None = None) -> str:
        """The text of a Dockerfile that an engine builds, with `context()` as its context.

        Args:
            base: what `FROM` names, where the spec has no Dockerfile of its own; by default its
                `image`.

        Raises:
            ConfigError: nothing names a base.
        """
        lines = [self.text.rstrip("\n")] if self.text else []
        if not lines:
            name = base or self.image
            if not name:
                raise ConfigError("a container image needs a base: name one as `image`")
            lines.append(f"FROM {name}")
        user = next((i.rest for i in reversed(read(self.text)) if i.word in ("USER", "FROM")), "")
        last = next((i.word for i in reversed(read(self.text)) if i.word in ("USER", "FROM")), "")
        changed = last == "USER" and user not in ("root", "0")
        more = self.apt or self.packages or self.setup
        if changed and more:
            lines.append("USER root")
        if self.apt:
            words = " ".join(_quoted(name) for name in self.apt)
            lines.append(
                "RUN apt-get update"
                " && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
                f" {words} && rm -rf /var/lib/apt/lists/*"
            )
        if self.packages:
            words = " ".join(_quoted(name) for name in self.packages)
            lines.append(
                "RUN PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore"
                f" python3 -m pip install --no-cache-dir {words}"
            )
        lines += ["RUN " + _run_words(line) for line in self.setup]
        if changed and more:
            lines.append(f"USER {user}")
        return "\n".join(lines) + "\n"

    def context(self, base: str | None = None) -> bytes:
        """An uncompressed tar with the Dockerfile and its files: the same bytes every time.

        Args:
            base: see `dockerfile`.

        Raises:
            ConfigError: see `dockerfile`; or a file changed since the recipe was made.
        """
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            data = self.dockerfile(base).encode()
            member = tarfile.TarInfo("Dockerfile")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            for name, _ in self.files:
                if name != "Dockerfile":
                    _add(tar, self.folder, name)
        return buffer.getvalue()

    def copied(self, step: Copy) -> list[tuple[str, str]]:
        """Which files of the context a COPY takes: path in the context, path in the image.

        Raises:
            ConfigError: a source leaves the context, or matches nothing.
        """
        found: list[tuple[str, str]] = []
        names = [name for name, _ in self.files]
        for source in step.sources:
            pattern = _inside(source, step)
            if not self.folder:
                raise ConfigError(
                    f"dockerfile, {step.label}: there is no context to copy {source!r} from; give "
                    "the path of a Dockerfile, or write the file as a here-document (COPY <<EOF)"
                )
            found += _matches(names, pattern, step)
        return found


def _inside(source: str, step: Copy) -> str:
    parts = [part for part in source.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError(f"dockerfile, {step.label}: {source!r} leaves the context")
    return "/".join(parts)


def _matches(names: list[str], pattern: str, step: Copy) -> list[tuple[str, str]]:
    """Files that a source names: itself, what lies in a folder of that name, or what it matches."""
    found = []
    depth = len(PurePosixPath(pattern).parts)
    for name in names:
        parts = PurePosixPath(name).parts
        top = "/".join(parts[:depth])
        if not all(map(fnmatch.fnmatchcase, parts[:depth], PurePosixPath(pattern).parts)):
            continue
        if len(parts) < depth:
            continue
        rest = "/".join(parts[depth:])
        if rest:
            found.append((name, step.target.rstrip("/") + "/" + rest))
        elif step.target.endswith("/"):
            found.append((name, step.target + PurePosixPath(top).name))
        else:
            found.append((name, step.target))
    if not found:
        raise ConfigError(f"dockerfile, {step.label}: nothing in the context matches {pattern!r}")
    return found


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _run_words(line: str) -> str:
    """A shell line for RUN; one of several lines goes in as a word of its own."""
    if "\n" not in line and not line.rstrip().endswith("\\") and not line.startswith(("[", "--")):
        return line
    words = ", ".join(f'"{_escaped(word)}"' for word in ("/bin/sh", "-c", line))
    return f"[{words}]"


def _escaped(word: str) -> str:
    for raw, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        word = word.replace(raw, escaped)
    return word


def _dockerfile(given: str | None) -> tuple[str, str]:
    """Text and context folder of `SandboxSpec.dockerfile`."""
    if not given:
        return "", ""
    if "\n" in given or given.lstrip().upper().startswith(("FROM ", "ARG ", "#")):
        return given, ""
    path = Path(given)
    try:
        return path.read_text(encoding="utf-8"), os.path.realpath(path.parent)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"dockerfile {given!r}: expected the text of a Dockerfile or the path of one; {error}"
        ) from error


def _ignored(folder: str) -> list[str]:
    path = Path(folder, IGNORE)
    if not path.is_file():
        return []
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    patterns = [line.strip("/") for line in lines if line and not line.startswith("#")]
    for pattern in patterns:
        if pattern.startswith("!"):
            raise ConfigError(f"{path}: exceptions ({pattern}) are not supported")
    return patterns


def _digests(folder: str) -> tuple[tuple[str, str], ...]:
    """Every file and link of the context, with the digest of its mode and content."""
    ignored = _ignored(folder)
    found: list[tuple[str, str]] = []
    total = 0
    for top, folders, files in os.walk(folder):
        below = os.path.relpath(top, folder)
        at = "" if below == "." else below + "/"
        folders[:] = [name for name in folders if not _skips(at + name, ignored)]
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        for name in files + links:
            if _skips(at + name, ignored):
                continue
            state = os.lstat(os.path.join(top, name))
            total += state.st_size
            if total > CONTEXT_BYTES or len(found) >= CONTEXT_FILES:
                raise ConfigError(
                    f"the Dockerfile's folder {folder} is too large for a context: more than "
                    f"{CONTEXT_BYTES >> 20} MB or {CONTEXT_FILES} files; leave some out by {IGNORE}"
                )
            found.append((at + name, _digest(os.path.join(top, name), state)))
    return tuple(sorted(found))


def _skips(name: str, ignored: list[str]) -> bool:
    parts = name.split("/")
    return any(
        fnmatch.fnmatchcase("/".join(parts[:depth]), pattern.removeprefix("**/"))
        or ("/" not in pattern.removeprefix("**/") and pattern.startswith("**/")
            and fnmatch.fnmatchcase(parts[depth - 1], pattern.removeprefix("**/")))
        for pattern in ignored
        for depth in range(1, len(parts) + 1)
    )  # fmt: skip


def _digest(path: str, state: os.stat_result) -> str:
    if stat.S_ISLNK(state.st_mode):
        return "link " + os.readlink(path)
    if not stat.S_ISREG(state.st_mode):
        raise ConfigError(f"{path}: a context holds files, folders and links only")
    hasher = hashlib.blake2b(b"%o" % (state.st_mode & 0o111), digest_size=16)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return hasher.hexdigest()


def _add(tar: tarfile.TarFile, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    state = os.lstat(path)
    member = tarfile.TarInfo(name)
    member.mode = 0o755 if state.st_mode & 0o111 else 0o644
    if stat.S_ISLNK(state.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(member)
        return
    with open(path, "rb") as file:
        member.size = os.fstat(file.fileno()).st_size
        tar.addfile(member, file)
