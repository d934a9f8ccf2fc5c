"""Attack: leave something for the next sandbox: files, shared memory, queues, semaphores."""

from __future__ import annotations

LEAVE = """
import ctypes, os, sys
for folder in sys.argv[1:]:
    try:
        open(folder + "/left-behind", "w").write("x")
    except OSError:
        pass
libc = ctypes.CDLL(None)
print("shm", libc.shmget(0x51756E74, 4096, 0o1666) >= 0)
"""
FIND = """
import ctypes, os, sys
print([f for f in sys.argv[1:] if os.path.exists(f + "/left-behind")])
print(ctypes.CDLL(None).shmget(0x51756E74, 4096, 0) >= 0)
"""
FREE = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmctl(libc.shmget(0x51756E74, 4096, 0), 0, None)
"""
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp", "/work", "/home/sandbox", "/run", "/", "/usr", "/etc")


async def test_next_use(tmp_path, open_sandbox, unprotected, python):
    unprotected(python(LEAVE, tmp_path, inside=False))
    control = unprotected(python(FIND, tmp_path, inside=False))
    unprotected(python(FREE, inside=False))
    assert control.stdout == f"['{tmp_path}']\nTrue\n", control
    first = await open_sandbox()
    assert "shm True" in (await first.exec(python(LEAVE, *FOLDERS, inside=True))).text
    beside = await open_sandbox()
    assert (await beside.exec(python(FIND, *FOLDERS, inside=True))).text == "[]\nFalse\n"
    await first.close()
    after = await open_sandbox()
    assert (await after.exec(python(FIND, *FOLDERS, inside=True))).text == "[]\nFalse\n"
