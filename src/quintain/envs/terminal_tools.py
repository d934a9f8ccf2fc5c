"""Tools of the terminal: a shell that stays, exact edits, numbered reading, search.

They work over any sandbox; where it has sessions, one shell lives as long as the sandbox, so that
folder, variables and background jobs stay between calls. What they return is bounded.
"""

from __future__ import annotations

import weakref
from typing import Any

from quintain.envs.tools import FunctionTool, ToolError, describe_exec
from quintain.errors import SandboxError
from quintain.protocols import ExecResult, Sandbox, Session

MAX_CHARS = 30_000
MAX_FILE_BYTES = 10_000_000
MAX_LINES = 1000
MAX_LINE_CHARS = 2000
MAX_FOUND = 200
AROUND = 4
"""Lines shown before and after an edit."""
MAX_SHOWN = 40
NO_OUTPUT = "[no output]"
_SESSIONS: weakref.WeakKeyDictionary[Sandbox, Session] = weakref.WeakKeyDictionary()


async def _shell(command: str, sandbox: Any, timeout_s: float | None = None) -> str:  # noqa: D417
    """Runs a command in a shell and returns its output and exit code.

    Folder, variables and background jobs stay for the next call.

    Args:
        command: one or more lines, as typed at a prompt. It has no input and no terminal.
        timeout_s: seconds after which it is killed; the shell itself stays.
    """
    if "session" not in sandbox.capabilities:
        run = await sandbox.exec(["/bin/sh", "-c", command], timeout_s=timeout_s)
        return describe_exec(run) or NO_OUTPUT
    session = _SESSIONS.get(sandbox)
    if session is None:
        session = _SESSIONS[sandbox] = await sandbox.session()
    run = await session.run(command, timeout_s=timeout_s)
    return describe_exec(run) or NO_OUTPUT


async def _read(path: str, sandbox: Any, first_line: int = 1, last_line: int | None = None) -> str:  # noqa: D417
    """Shows a text file with line numbers, or the names in a folder.

    Args:
        path: absolute, or relative to the working folder that the task began in.
        first_line: the first line to show, counted from 1.
        last_line: the last line to show; by default as many as fit.
    """
    try:
        data: bytes = await sandbox.read(path, max_bytes=MAX_FILE_BYTES)
    except SandboxError:
        raise
    except IsADirectoryError:
        return await _names(path, sandbox)
    except OSError as error:
        run = await sandbox.exec(["test", "-d", path])
        if run.ok:
            return await _names(path, sandbox)
        raise ToolError(f"{path}: {error.strerror or error}") from error
    if b"\0" in data[:8192]:
        raise ToolError(f"{path} is no text: {len(data)} bytes; look at it with the shell")
    lines = data.decode("utf-8", "replace").splitlines()
    if first_line < 1 or (last_line is not None and last_line < first_line):
        raise ToolError("lines are counted from 1, and the last is not before the first")
    if first_line > max(1, len(lines)):
        raise ToolError(f"{path} has {len(lines)} lines")
    last = min(len(lines), last_line or len(lines), first_line + MAX_LINES - 1)
    shown = _numbered(lines, first_line, last)
    if last < len(lines):
        shown += f"\n[lines {first_line} to {last} of {len(lines)}]"
    return shown or "[empty file]"


async def _names(path: str, sandbox: Sandbox) -> str:
    run = await sandbox.exec(["ls", "-lA", "--", path])
    if not run.ok:
        raise ToolError(run.error_text.strip() or f"{path} cannot be listed")
    return run.text


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(
        f"{number:>6}\t{_short(lines[number - 1])}" for number in range(first, last + 1)
    )


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} [line cut]"


async def _edit(path: str, old: str, new: str, sandbox: Any, everywhere: bool = False) -> str:  # noqa: D417
    """Replaces a piece of text in a file, or creates a file.

    The old text must match exactly, with its spaces and line breaks, and occur only once.

    Args:
        path: absolute, or relative to the working folder that the task began in.
        old: the text to replace; empty: create the file, which must not exist yet.
        new: what stands there afterwards; with empty `old` the whole content.
        everywhere: replace every occurrence instead of demanding that there is one.
    """
    content = await _content(path, sandbox)
    if not old:
        if content is not None:
            raise ToolError(f"{path} exists already: name the text to replace in `old`")
        await _write(path, new, 0o644, sandbox)
        return created(path, new)
    if content is None:
        raise ToolError(f"there is no {path}; with an empty `old` it is created")
    changed, told = replaced(path, content, old, new, everywhere)
    await _write(path, changed, await _mode(path, sandbox), sandbox)
    return told


def replaced(
    path: str, content: str, old: str, new: str, everywhere: bool = False
) -> tuple[str, str]:
    """A file's content after an exact replacement, and what the policy is told.

    Raises:
        ToolError: the old text is not there, or not only once.
    """
    if old == new:
        raise ToolError("`old` and `new` are the same: nothing to do")
    found = content.count(old)
    if not found:
        raise ToolError(_not_found(path, content, old))
    if found > 1 and not everywhere:
        places = ", ".join(map(str, _places(content, old)[:10]))
        raise ToolError(
            f"`old` occurs {found} times in {path} (lines {places}): add lines around it, or set "
            "`everywhere`"
        )
    first = content[: content.index(old)].count("\n") + 1
    changed = content.replace(old, new)
    lines = changed.splitlines()
    last = min(len(lines), first + new.count("\n") + AROUND, first + MAX_SHOWN)
    shown = _numbered(lines, max(1, first - AROUND), last)
    return changed, f"replaced {found} in {path}:\n{shown}"


def created(path: str, content: str) -> str:
    """What the policy is told of a new file."""
    return f"created {path}, {len(content.splitlines())} lines"


async def _content(path: str, sandbox: Sandbox) -> str | None:
    """The file's text, or None where there is none."""
    try:
        data = await sandbox.read(path, max_bytes=MAX_FILE_BYTES)
        return data.decode()
    except SandboxError:
        raise
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is no UTF-8 text; change it with the shell") from error
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error


async def _write(path: str, text: str, mode: int, sandbox: Sandbox) -> None:
    try:
        await sandbox.write(path, text.encode("utf-8", "replace"), mode=mode)
    except SandboxError:
        raise
    except OSError as error:
        raise ToolError(f"{path} cannot be written: {error.strerror or error}") from error


async def _mode(path: str, sandbox: Sandbox) -> int:
    run = await sandbox.exec(["stat", "-Lc", "%a", "--", path])
    word = run.text.strip()
    return int(word, 8) & 0o777 if run.ok and word.isdigit() else 0o644


def _places(content: str, old: str) -> list[int]:
    """The lines on which the text begins."""
    places, at = [], content.find(old)
    while at >= 0:
        places.append(content[:at].count("\n") + 1)
        at = content.find(old, at + len(old))
    return places


def _not_found(path: str, content: str, old: str) -> str:
    """Says where the text nearly stands."""
    wanted = [line.strip() for line in old.splitlines() if line.strip()]
    near = [
        number
        for number, line in enumerate(content.splitlines(), 1)
        if wanted and line.strip() == wanted[0]
    ]
    hint = (
        f"; its first line stands on line {near[0]}, the rest or the spaces differ" if near else ""
    )
    return f"`old` is not in {path}{hint}. Read the file and copy the text exactly"


async def _search(pattern: str, sandbox: Any, path: str = ".", files: str = "") -> str:  # noqa: D417
    """Finds lines that match a regular expression, in all text files under a folder.

    Args:
        pattern: an extended regular expression, as grep -E takes it.
        path: a folder or a file; by default the working folder that the task began in.
        files: only files with such a name, as in *.py.
    """
    argv = ["grep", "-rnIE", "--exclude-dir=.git", *([f"--include={files}"] if files else [])]
    run: ExecResult = await sandbox.exec([*argv, "-e", pattern, "--", path])
    if run.killed:
        raise ToolError(f"the search was ended by the {run.killed} limit: search in less")
    if run.exit_code > 1 and not run.stdout:
        raise ToolError(run.error_text.strip() or f"grep ended with {run.exit_code}")
    lines = run.text.splitlines()
    if not lines:
        return "[no match]"
    shown = "\n".join(_short(line)[:500] for line in lines[:MAX_FOUND])
    more = len(lines) - MAX_FOUND
    return shown + (f"\n[{more} more: search more exactly]" if more > 0 or run.truncated else "")


shell = FunctionTool(_shell, name="shell", timeout_s=3600.0, max_chars=MAX_CHARS)
"""`shell(command)`: a command in a shell that stays."""
read = FunctionTool(_read, name="read", timeout_s=600.0, max_chars=MAX_CHARS)
"""`read(path, first_line, last_line)`: a file with line numbers, or a folder's names."""
edit = FunctionTool(_edit, name="edit", timeout_s=600.0, max_chars=MAX_CHARS)
"""`edit(path, old, new)`: an exact replacement, or a new file."""
search = FunctionTool(_search, name="search", timeout_s=600.0, max_chars=MAX_CHARS)
"""`search(pattern, path, files)`: lines that match."""
TOOLS = (shell, edit, read, search)
"""All four."""
