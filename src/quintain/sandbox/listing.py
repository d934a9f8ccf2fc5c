"""What lies under a folder inside a sandbox, seen from its owner through a descriptor.

Nothing runs inside, so nothing that the candidate left there can colour the list. Folders are
entered one name at a time and links never followed, so that a tree that changes meanwhile leads
nowhere else.
"""

from __future__ import annotations

import errno
import os
import stat

from quintain.protocols import Entry

MAX_DEPTH = 100
_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def list_folder(fd: int, max_entries: int) -> list[Entry]:
    """The entries under an open folder, sorted by path.

    Raises:
        OSError: more than `max_entries`, deeper than `MAX_DEPTH`, or not readable.
    """
    found: list[Entry] = []
    _walk(fd, "", 0, max_entries, found)
    return sorted(found, key=lambda entry: entry.path)


def _walk(fd: int, above: str, depth: int, max_entries: int, found: list[Entry]) -> None:
    if depth > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, f"deeper than {MAX_DEPTH} folders")
    with os.scandir(fd) as names:
        for name in names:
            if len(found) >= max_entries:
                raise OSError(errno.EFBIG, f"more than {max_entries} entries")
            # os.fsdecode keeps odd bytes as surrogates; a path must be text that can be stored.
            path = above + os.fsencode(name.name).decode("utf-8", "backslashreplace")
            status = name.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                found.append(Entry(path, "folder", stat.S_IMODE(status.st_mode), 0))
                inner = os.open(name.name, _INTO, dir_fd=fd)
                try:
                    _walk(inner, f"{path}/", depth + 1, max_entries, found)
                finally:
                    os.close(inner)
            else:
                found.append(_entry(fd, name.name, path, status))


def _entry(fd: int, name: str, path: str, status: os.stat_result) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return Entry(path, "file", mode, status.st_size)
    if stat.S_ISLNK(status.st_mode):
        target = os.fsencode(os.readlink(name, dir_fd=fd)).decode("utf-8", "backslashreplace")
        return Entry(path, "link", mode, status.st_size, target)
    return Entry(path, "other", mode, 0)
