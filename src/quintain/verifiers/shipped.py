"""Installed distributions as a ZIP file, to be unpacked in a clean room.

Whoever judges brings its own tools: what is installed in a room belongs to its image.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import marshal
import re
import zipfile
from collections.abc import Mapping, Sequence

from quintain.errors import ConfigError


def distributions(root: str, extra: str, *, without: Sequence[str] = ()) -> list[str]:
    """A distribution and what it needs here, by name.

    Args:
        root: its name.
        extra: of this package, that brings it.
        without: what it does without.

    Raises:
        ConfigError: it is not installed.
    """
    found: list[str] = []
    queue = [root]
    while queue:
        name = queue.pop()
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError as error:
            if name == root:
                raise ConfigError(f"this needs {root}: pip install 'quintain[{extra}]'") from error
            continue  # for another Python or another system
        if name not in found and name.lower() not in without:
            found.append(name)
            queue += [re.split(r"[^\w.-]", need)[0] for need in needs if "extra ==" not in need]
    return found


def archive(
    names: Sequence[str],
    more: Mapping[str, str],
    *,
    compiled: bool = True,
    bytecode: bool = True,
    without: Sequence[str] = (),
) -> bytes:
    """A ZIP file of distributions and further files.

    Args:
        names: of the distributions.
        more: path to text.
        compiled: whether compiled modules go along; without them it fits any system.
        bytecode: whether the bytecode of each module for this Python goes along.
        without: folders that stay behind, each with its slash.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as out:
        for name in names:
            for file in importlib.metadata.files(name) or ():
                path = str(file)
                if path.startswith(("..", *without)) or "__pycache__" in path:
                    continue
                if compiled or not path.endswith((".so", ".pyd")):
                    _put(out, path, file.read_binary(), bytecode)
        for path, text in more.items():
            _put(out, path, text.encode(), bytecode)
    return buffer.getvalue()


def _put(out: zipfile.ZipFile, path: str, data: bytes, bytecode: bool) -> None:
    out.writestr(path, data)
    if not bytecode or not path.endswith(".py") or not path.isascii():
        return
    # Named by version: an interpreter of another one does not look at it. Never checked against
    # the source: the two travel together.
    try:
        code = compile(data, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    out.writestr(importlib.util.cache_from_source(path), head + marshal.dumps(code))
