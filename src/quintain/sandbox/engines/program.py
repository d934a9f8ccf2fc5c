"""Compiles `agent.c` to a static program, once per content, into the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from quintain.errors import IsolationError
from quintain.record import digest
from quintain.sandbox.build import cache_folder, compiler

SOURCE = Path(__file__).with_name("agent.c")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-static", "-s")
COMPILE_S = 60.0


def agent() -> Path:
    """The compiled agent.

    Raises:
        IsolationError: it cannot be compiled here, and what to install.
    """
    target = cache_folder() / f"agent-{digest(SOURCE.read_bytes(), *FLAGS, os.uname().machine)}"
    if target.is_file() and target.stat().st_uid == os.geteuid():
        return target
    found = compiler()
    if found is None:
        raise _refusal("there is no C compiler")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder, "agent")
        command = [found, *FLAGS, "-o", str(built), str(SOURCE)]
        try:
            run = subprocess.run(command, capture_output=True, timeout=COMPILE_S, text=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refusal(str(error)) from error
        if run.returncode:
            raise _refusal(run.stderr.strip()[-500:])
        built.chmod(0o555)
        built.replace(target)
    return target


def _refusal(why: str) -> IsolationError:
    return IsolationError(
        f"containers need a small program that cannot be compiled here: {why}. Install a C "
        "compiler and the static C library (Debian: apt-get install gcc libc6-dev)",
        ("agent",),
    )
