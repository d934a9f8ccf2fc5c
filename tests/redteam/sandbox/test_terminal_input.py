"""Attack: type into the terminal of whoever started it."""

from __future__ import annotations

CODE = """
import errno, fcntl, os, pty, sys
master, slave = os.openpty()
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(slave, request, b"x")
        print("typed")
    except OSError as error:
        print(errno.errorcode[error.errno])
try:
    print("terminal", os.open("/dev/tty", os.O_RDWR))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


async def test_typing(sandbox, unprotected, python):
    control = unprotected(["setsid", "-w", *python(CODE, inside=False)]).stdout.split()
    assert control[1] != "EPERM", "the control reaches the terminal"
    run = await sandbox.exec(python(CODE, inside=True))
    assert run.text.split() == ["EPERM", "EPERM", "ENXIO"], run
