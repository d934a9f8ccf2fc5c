"""Attack: memory that a neighbour shares by a key or a name: System V, POSIX, message queues."""

from __future__ import annotations

import asyncio
import os

LEAVE = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
key = int(sys.argv[1])
made = libc.shmget(key, 4096, 0o1666)
if made >= 0:
    where = libc.shmat(made, None, 0)
    ctypes.memmove(where, b"SESAME", 6)
queue = libc.msgget(key, 0o1666)
with open(f"/dev/shm/quintain-{key}", "wb") as file:
    file.write(b"SESAME")
print("left", flush=True)
time.sleep(float(sys.argv[2]))
"""
SEARCH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
key = int(sys.argv[1])
made = libc.shmget(key, 4096, 0)
if made >= 0:
    print("shared memory", ctypes.string_at(libc.shmat(made, None, 0), 6))
    if len(sys.argv) > 2:
        libc.shmctl(made, 0, None)
queue = libc.msgget(key, 0)
if queue >= 0:
    print("queue")
    if len(sys.argv) > 2:
        libc.msgctl(queue, 0, None)
path = f"/dev/shm/quintain-{key}"
if os.path.exists(path):
    print("file", open(path, "rb").read())
    if len(sys.argv) > 2:
        os.unlink(path)
"""


async def test_memory(open_sandbox, unprotected, python):
    key = 0x51000000 + os.getpid() % 0xFFFFFF
    unprotected(python(LEAVE, key, 0, inside=False))
    control = unprotected(python(SEARCH, key, "remove", inside=False)).stdout
    assert control.splitlines() == ["shared memory b'SESAME'", "queue", "file b'SESAME'"]
    neighbour, attacker = await open_sandbox(), await open_sandbox()
    there = asyncio.create_task(neighbour.exec(python(LEAVE, key, 5, inside=True)))
    path = f"/dev/shm/quintain-{key}"
    async with asyncio.timeout(20):
        while not (await neighbour.exec(["test", "-s", path])).ok:
            await asyncio.sleep(0.05)
    run = await attacker.exec(python(SEARCH, key, inside=True))
    assert run.ok, run
    assert run.text == "", run
    await neighbour.close()
    await asyncio.gather(there, return_exceptions=True)
