"""Attack: a FIFO, a leased file or a terminal where the owner reads, so that it waits forever."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

LEASE = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open("/work/leased", os.O_RDWR | os.O_CREAT)
fcntl.fcntl(fd, 1024, fcntl.F_WRLCK)
print("leased", flush=True)
time.sleep(3)
"""


async def test_fifo(tmp_path, sandbox):
    os.mkfifo(tmp_path / "pipe")
    opened = threading.Event()

    def naive():
        with open(tmp_path / "pipe") as file:
            opened.set()
            file.read()

    thread = threading.Thread(target=naive)
    thread.start()
    assert not opened.wait(0.5), "the control waits"
    os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
    thread.join()
    await sandbox.exec(["mkfifo", "-m", "666", "/work/pipe"])
    for call in (
        sandbox.read("pipe"),
        sandbox.write("pipe", b"x"),
        sandbox.read("/dev/tty"),
        sandbox.read("/dev/zero"),
        sandbox.read("/dev/ptmx"),
    ):
        with pytest.raises(OSError, match=r"."):
            await asyncio.wait_for(call, 5)


async def test_lease(sandbox):
    holder = asyncio.create_task(sandbox.exec(["python3", "-c", LEASE]))
    await asyncio.sleep(0.7)
    with pytest.raises(OSError, match=r"."):
        await asyncio.wait_for(sandbox.read("leased"), 2)
    assert "leased" in (await holder).text
