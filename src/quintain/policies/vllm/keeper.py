"""Runs a command and ends it, with everything that it started, when its owner is gone.

    python keeper.py FD COMMAND ...

FD is the read end of a pipe whose other end the owner alone holds: it closes when the owner ends,
also by SIGKILL. Standard library only. Exits as the command did (128 + n for signal n).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.5
"""A forked sibling of the owner may hold the pipe's other end: the parent is looked at, too."""


def main() -> int:
    """Waits for whichever ends first, the owner or the command."""
    pipe, owner = int(sys.argv[1]), os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    # Grandchildren that outlive their parent come to this process, and so are found.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(
        sys.argv[2:],
        stdin=subprocess.DEVNULL,
        # Should this process itself be killed, the command goes with it.
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    ended = os.pidfd_open(child.pid)
    while True:
        ready, _, _ = select.select([pipe, ended], [], [], LOOK_S)
        if ended in ready:
            code = child.wait()
            break
        if pipe in ready or os.getppid() != owner:
            code = -signal.SIGKILL
            break
    _end_descendants()
    return code if code >= 0 else 128 - code


def _end_descendants() -> None:
    """Kills children until there are none; what they leave behind becomes a child."""
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
