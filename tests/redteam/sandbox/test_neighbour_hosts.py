"""Attack: reach another host (the control: an address in a network namespace of its own)."""

from __future__ import annotations

import shutil

import pytest

CODE = """
import socket, sys, threading
def connect():
    with socket.create_connection(("192.0.2.77", 8080), timeout=2) as s:
        print(s.recv(10).decode())
if sys.argv[1] == "serve":
    server = socket.create_server(("192.0.2.77", 8080))
    threading.Thread(target=connect).start()
    server.accept()[0].sendall(b"hello")
else:
    connect()
"""


async def test_address(sandbox, unprotected, python, as_root):
    if not shutil.which("ip"):
        pytest.skip("the control needs the ip program (iproute2)")
    script = 'ip link set lo up; ip addr add 192.0.2.77/32 dev lo; exec "$@"'
    control = ["unshare", "--net", "sh", "-c", script, "sh", *python(CODE, "serve", inside=False)]
    assert unprotected(control).stdout == "hello\n", unprotected(control)
    run = await sandbox.exec(python(CODE, "connect", inside=True))
    assert "Network is unreachable" in run.error_text, run
