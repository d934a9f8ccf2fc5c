"""Which files of a candidate are taken, and taking them.

Only what the task's patterns name, and of that nothing that an interpreter, a test runner or a
version control system reads by itself. A link is not a file: where a source file is expected it
fails the candidate.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence
from typing import cast

from quintain.errors import VerifierError
from quintain.protocols import JudgeContext, Listing
from quintain.verifiers.artifacts import candidate_file

MAX_FILES = 2_000
MAX_ENTRIES = 20_000
MAX_FILE_BYTES = 5_000_000
MAX_BYTES = 50_000_000
REFUSED = re.compile(
    r"""(?:^|/)(?:
        conftest\.py | sitecustomize\.py | usercustomize\.py | __main__\.pth
        | [^/]*\.(?:pth|pyc|pyo|pyd|so|egg|egg-link|whl|dylib)
        | \.?pytest\.(?:ini|toml) | tox\.ini | setup\.(?:cfg|py) | pyproject\.toml | noxfile\.py
        | \.coveragerc | pip\.conf | requirements[^/]*\.txt | Makefile
        | \.[^/]+ | __pycache__ | [^/]+\.(?:dist-info|egg-info) | site-packages | dist-packages
    )(?:/|$)""",
    re.VERBOSE,
)
"""Never taken, whatever the patterns say: what hooks into an interpreter or configures a run."""
JUDGES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "pygments",
                    "coverage", "room_tests", "room_values", "room_guard"})  # fmt: skip
"""Modules of the judge, besides the standard library's, that no file may stand in for."""


class Unsuitable(Exception):
    """The candidate's files cannot be taken: the candidate's doing, in words."""


def check_path(path: str) -> None:
    """Refuses a path or pattern that is absolute or leads out.

    Raises:
        ValueError: it does.
    """
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"expected a path below the workdir, got {path!r}")


class Patterns:
    """The allow-list of a task.

    Args:
        patterns: paths, with `*` and `?` inside a name, and `**` for any number of folders.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(posixpath.normpath(pattern) for pattern in patterns)
        self._matches = [re.compile(_expression(pattern)) for pattern in self.patterns]

    def takes(self, path: str) -> bool:
        """Whether a file of the candidate at this path is taken."""
        return self.names(path) and not REFUSED.search(path)

    def names(self, path: str) -> bool:
        """Whether a pattern names the path."""
        return any(match.fullmatch(path) for match in self._matches)

    @property
    def single(self) -> str | None:
        """The only path that is taken, where there is one."""
        only = self.patterns[0]
        return only if len(self.patterns) == 1 and not set(only) & set("*?") else None


def _expression(pattern: str) -> str:
    out = ""
    for part in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern):
        out += {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(
            part, re.escape(part)
        )
    return out


def shadows(path: str, roots: Sequence[str]) -> str:
    """The module of the judge or of the standard library that a file would stand in for."""
    for root in roots:
        below = posixpath.relpath(path, root)
        if not below.startswith(".."):
            name = below.split("/")[0].removesuffix(".py")
            if name in JUDGES or name in sys.stdlib_module_names:
                return name
    return ""


async def from_folder(
    context: JudgeContext, folder: str, patterns: Patterns
) -> tuple[dict[str, bytes], list[str]]:
    """The allow-listed files below a folder of the episode's sandbox, and what was left there.

    Without the sandbox (a verdict given later) the paths of the allow-list are read from kept
    artifacts, which needs an allow-list of paths.

    Raises:
        Unsuitable: a link or something else stands where a file is taken, or there is too much.
        VerifierError: the sandbox cannot be listed, or is gone and patterns cannot be looked up.
    """
    if context.sandbox is None:
        return await _kept(context, folder, patterns), []
    if "list" not in context.sandbox.capabilities:
        raise VerifierError("a project needs a sandbox whose folders can be listed")
    listing = cast("Listing", context.sandbox)
    try:
        entries = await listing.entries(folder, max_entries=MAX_ENTRIES)
    except TimeoutError:
        raise
    except FileNotFoundError:
        raise Unsuitable(f"{folder} is not there") from None
    except OSError as error:
        raise Unsuitable(f"{folder} cannot be listed: {error}") from None
    files: dict[str, bytes] = {}
    left = []
    links = {entry.path for entry in entries if entry.kind == "link"}
    for entry in entries:
        if entry.kind == "folder":
            continue
        if not patterns.takes(entry.path):
            left.append(entry.path)
            continue
        if entry.kind != "file" or entry.path in links:
            raise Unsuitable(f"{entry.path} is a {entry.kind}, not a file")
        data, why = await candidate_file(
            context, posixpath.join(folder, entry.path), MAX_FILE_BYTES
        )
        if data is None:
            raise Unsuitable(f"{entry.path}: {why}")
        files[entry.path] = data
        check_size(files)
    return files, left


async def _kept(context: JudgeContext, folder: str, patterns: Patterns) -> dict[str, bytes]:
    if any(set(pattern) & set("*?") for pattern in patterns.patterns):
        raise VerifierError(
            "the episode's sandbox is gone: only an allow-list of paths can be judged from kept "
            f"artifacts, not {', '.join(patterns.patterns)}"
        )
    files = {}
    for path in patterns.patterns:
        where = (posixpath.join(folder, path), path)
        found = [data for name in where if (data := context.artifact(name)) is not None]
        if found and patterns.takes(path):
            files[path] = found[0]
    return files


def check_size(files: dict[str, bytes]) -> None:
    """Refuses too much.

    Raises:
        Unsuitable: too many files, or too many bytes.
    """
    if len(files) > MAX_FILES:
        raise Unsuitable(f"more than {MAX_FILES} source files")
    if sum(map(len, files.values())) > MAX_BYTES:
        raise Unsuitable(f"more than {MAX_BYTES} bytes of source")
