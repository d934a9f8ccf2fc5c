"""Attack: make a used sandbox look fresh to the survey that proves a reset, or stop it."""

from __future__ import annotations

import asyncio

import pytest

TRICKS = {
    "a name that imitates lines": r"""
import os
os.mkdir("/work/a\n'b' 100644 0 0 0 0 ")
""",
    "a hidden attribute": r"""
import os
try:
    os.setxattr("/work", "user.message", b"for the next")
except OSError:
    os.chmod("/work", 0o701)
""",
    "a folder put back with other rights": r"""
import os, shutil
os.chmod("/work", 0o777)
""",
    "times and sizes as they were": r"""
import os
state = os.stat("/work")
open("/work/x", "w").close()
os.utime("/work", ns=(state.st_atime_ns, state.st_mtime_ns))
""",
    "a hole of 200 MB": r"""
open("/work/hole", "w").truncate(200 << 20)
""",
    "a pipe that blocks who opens it": r"""
import os
os.mkfifo("/work/pipe")
""",
    "a link out": r"""
import os
os.symlink("/etc/shadow", "/tmp/link"); os.symlink("/tmp", "/tmp/loop")
""",
    "a socket": r"""
import socket
socket.socket(socket.AF_UNIX).bind("/tmp/socket")
""",
    "more names than are read": r"""
import os
for n in range(7000): open(f"/tmp/{n}", "w").close()
""",
    "a deep tree": r"""
import os
os.chdir("/tmp")
for n in range(300): os.mkdir("d"); os.chdir("d")
""",
    "a message in shared memory": r"""
import ctypes
ctypes.CDLL(None).shmget(7, 4096, 0o1666)
""",
    "a queue": r"""
import ctypes
ctypes.CDLL(None).msgget(7, 0o1666)
""",
}


@pytest.mark.parametrize("trick", TRICKS)
async def test_forge(open_sandbox, python, trick):
    box = await open_sandbox()
    fresh = await box.survey()
    run = await box.exec(python(TRICKS[trick], inside=True))
    assert run.ok, run
    async with asyncio.timeout(10):
        used = await box.survey()
    assert used != fresh  # the control: without a reset the trace is there, and it is seen
    heir = await box.reset()
    async with asyncio.timeout(10):
        while await heir.survey() != fresh:  # what the kernel charged is given back in its own time
            await asyncio.sleep(0.05)
    await heir.close()
