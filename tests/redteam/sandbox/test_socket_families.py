"""Attack: sockets that reach under or around the network: packets, netlink, vsock, crypto."""

from __future__ import annotations

CODE = """
import socket
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_NETLINK, socket.SOCK_RAW),
                     (38, 5), (40, 1), (socket.AF_INET, socket.SOCK_RAW)):
    try:
        socket.socket(family, kind).close()
        print("made", family)
    except OSError as error:
        print(error.strerror)
"""


async def test_families(sandbox, unprotected, python, as_root):
    control = unprotected(python(CODE, inside=False)).stdout
    assert control.count("made") >= 3, control
    run = await sandbox.exec(python(CODE, inside=True))
    assert run.ok, run
    assert "made" not in run.text, run
