"""Reading Dockerfiles: logical lines with continuations and here-documents, and the native subset.

The subset: one `FROM`, `ARG`, `ENV`, `WORKDIR`, `USER`, `RUN`, `COPY` (files of the context, or
here-documents). Anything else is refused by its line: an engine builds the whole language. The
language is that of the Dockerfile reference (docs.docker.com/reference/dockerfile).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from quintain.errors import ConfigError

SUBSET = ("FROM", "ARG", "ENV", "WORKDIR", "USER", "RUN", "COPY")
HARMLESS = ("LABEL", "MAINTAINER", "EXPOSE", "CMD", "ENTRYPOINT", "STOPSIGNAL")
"""Say nothing about files: a sandbox starts no command of the image's own."""
HERE_DOCUMENT = re.compile(r"<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One logical line."""

    line: int
    """Where it begins, from 1."""
    word: str
    """Upper case: `RUN`."""
    rest: str
    """What follows the word, continuations joined."""
    documents: tuple[tuple[str, str, bool], ...] = ()
    """Here-documents: name, content, whether variables in it are replaced."""


def read(text: str) -> list[Instruction]:
    """The logical lines of a Dockerfile.

    Raises:
        ConfigError: a here-document without its end.
    """
    lines = text.split("\n")
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        start, logical = at, ""
        while at < len(lines):
            piece = lines[at].rstrip("\r")
            at += 1
            if piece.lstrip().startswith("#") or (logical and not piece.strip()):
                if not logical:
                    break
                continue
            joined = piece.rstrip()
            if joined.endswith("\\"):
                logical += joined[:-1]
                continue
            logical += joined
            break
        word, _, rest = logical.strip().partition(" ")
        if not word:
            continue
        documents: tuple[tuple[str, str, bool], ...] = ()
        if word.upper() in ("RUN", "COPY"):
            documents, at = _documents(rest, lines, at, start + 1)
        found.append(Instruction(start + 1, word.upper(), rest.strip(), documents))
    return found


def _documents(
    rest: str, lines: list[str], at: int, line: int
) -> tuple[tuple[tuple[str, str, bool], ...], int]:
    found = []
    for dash, quote, name in HERE_DOCUMENT.findall(rest):
        content = []
        while True:
            if at == len(lines):
                raise ConfigError(f"dockerfile, line {line}: the here-document {name} has no end")
            text = lines[at].lstrip("\t") if dash else lines[at]
            at += 1
            if text.rstrip("\r") == name:
                break
            content.append(text + "\n")
        found.append((name, "".join(content), not quote))
    return tuple(found), at


@dataclass(frozen=True, slots=True)
class Run:
    """A command of the build."""

    argv: tuple[str, ...]
    label: str
    """What to call it in messages."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = "root"


@dataclass(frozen=True, slots=True)
class Copy:
    """Files for the image."""

    sources: tuple[str, ...]
    """Of the context: paths or patterns."""
    target: str
    """Absolute; ends with `/` when it is a folder for the sources."""
    label: str
    files: tuple[tuple[str, bytes], ...] = ()
    """Name to content of here-documents."""
    owner: str = ""
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is there afterwards."""

    path: str
    label: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the native subset makes of a Dockerfile."""

    base: str
    """What `FROM` names."""
    steps: tuple[Run | Copy | Folder, ...]
    env: dict[str, str]
    workdir: str
    """Empty: none was named."""
    user: str
    """Empty: none was named."""


class _Reader:
    """The state between two instructions."""

    def __init__(self) -> None:
        self.base = ""
        self.arguments: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.workdir = ""
        self.user = ""
        self.steps: list[Run | Copy | Folder] = []

    def take(self, one: Instruction) -> None:
        if one.word in HARMLESS:
            return
        if one.word not in SUBSET:
            raise _refusal(one, f"{one.word} is not of the subset that is built natively "
                           f"({', '.join(SUBSET)}); a container backend builds it")  # fmt: skip
        if not one.rest:
            raise _refusal(one, f"{one.word} says nothing")
        if not self.base and one.word not in ("FROM", "ARG"):
            raise _refusal(one, "expected FROM first")
        getattr(self, f"_{one.word.lower()}")(one)

    def value(self, text: str) -> str:
        """The text with variables replaced."""
        known = {**self.arguments, **self.env}

        def one(match: re.Match[str]) -> str:
            if match.group(0) == "\\$":
                return "$"
            plain, braced, mark, other = match.groups()
            found = known.get(plain or braced, "")
            if mark == "-":
                return found or other
            return (other if found else "") if mark == "+" else found

        return VARIABLE.sub(one, text)

    def _from(self, one: Instruction) -> None:
        if self.base:
            raise _refusal(one, "a second FROM: several stages need a container backend")
        words = self.value(one.rest).split()
        if len(words) != 1:
            raise _refusal(one, f"expected FROM and one base, got {one.rest!r}")
        self.base = words[0]
        self.arguments.clear()

    def _arg(self, one: Instruction) -> None:
        for word in self._words(one):
            name, _, value = word.partition("=")
            self.arguments.setdefault(name, self.value(value))

    def _env(self, one: Instruction) -> None:
        words = self._words(one)
        if "=" not in words[0]:
            name, space, value = one.rest.partition(" ")
            if not space:
                raise _refusal(one, f"ENV: expected NAME=value, got {one.rest!r}")
            self.env[name] = self.value(value.strip())
            return
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise _refusal(one, f"expected NAME=value, got {word!r}")
            self.env[name] = self.value(value)

    def _workdir(self, one: Instruction) -> None:
        self.workdir = self._absolute(self.value(one.rest.strip("\"'")))
        self.steps.append(Folder(self.workdir, _label(one)))

    def _user(self, one: Instruction) -> None:
        self.user = self.value(one.rest)

    def _run(self, one: Instruction) -> None:
        text = one.rest
        if text.startswith("--"):
            raise _refusal(one, f"{text.split()[0]} needs a container backend")
        argv: tuple[str, ...] = ("/bin/sh", "-c", text)
        if text.startswith("["):
            argv = _json_words(one, text)
        elif one.documents and HERE_DOCUMENT.fullmatch(text):
            argv = ("/bin/sh", "-c", one.documents[0][1])
        elif one.documents:
            ends = "".join(f"{content}{name}\n" for name, content, _ in one.documents)
            argv = ("/bin/sh", "-c", f"{text}\n{ends}")
        env = {**self.arguments, **self.env}
        self.steps.append(Run(argv, _label(one), env, self.workdir or "/", self.user or "root"))

    def _copy(self, one: Instruction) -> None:
        rest, owner, mode = one.rest, "", None
        while rest.startswith("--"):
            option, _, rest = rest.partition(" ")
            rest = rest.strip()
            name, _, value = option.partition("=")
            if name == "--chown":
                owner = self.value(value)
            elif name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
                mode = int(value, 8)
            else:
                raise _refusal(one, f"{option} needs a container backend")
        words = _json_words(one, rest) if rest.startswith("[") else self._words(one, rest)
        if len(words) < 2:
            raise _refusal(one, "COPY takes sources and a target")
        *sources, target = [self.value(word) for word in words]
        inline = {f"<<{dash}{name}" for dash, _, name in HERE_DOCUMENT.findall(rest)}
        files = tuple(
            (name, (self.value(content) if replaced else content).encode())
            for name, content, replaced in one.documents
        )
        folder = target.endswith("/") or target in (".", "..")
        target = self._absolute(target).rstrip("/") + ("/" if folder else "")
        kept = tuple(source for source in sources if source not in inline)
        if len(kept) + len(files) > 1 and not folder:
            raise _refusal(one, "several sources need a target that ends with /")
        self.steps.append(Copy(kept, target, _label(one), files, owner, mode))

    def _words(self, one: Instruction, text: str | None = None) -> list[str]:
        try:
            return shlex.split(one.rest if text is None else text)
        except ValueError as error:
            raise _refusal(one, str(error)) from error

    def _absolute(self, path: str) -> str:
        parts: list[str] = []
        joined = path if path.startswith("/") else f"{self.workdir or ''}/{path}"
        for part in joined.split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                parts.append(part)
        return "/" + "/".join(parts)


def _json_words(one: Instruction, text: str) -> tuple[str, ...]:
    try:
        words = json.loads(text)
    except ValueError as error:
        raise _refusal(one, f"not a JSON list: {text!r}") from error
    if not words or not all(isinstance(word, str) for word in words):
        raise _refusal(one, f"expected a list of strings, got {text!r}")
    return tuple(words)


def _label(one: Instruction) -> str:
    shown = one.rest if len(one.rest) < 100 else one.rest[:97] + "..."
    return f"line {one.line}: {one.word} {shown}"


def _refusal(one: Instruction, why: str) -> ConfigError:
    return ConfigError(f"dockerfile, line {one.line}: {why}")


def parse(text: str) -> Parsed:
    """The native subset of a Dockerfile.

    Raises:
        ConfigError: something else; the message names the line.
    """
    reader = _Reader()
    for instruction in read(text):
        reader.take(instruction)
    if not reader.base:
        raise ConfigError("dockerfile: there is no FROM")
    return Parsed(
        reader.base, tuple(reader.steps), dict(reader.env), reader.workdir, reader.user
    )  # fmt: skip
