"""Attack: fill the machine's log through its socket (the control: two thousand lines)."""

from __future__ import annotations

import socket
import threading

FLOOD = """
import socket, sys
sent = 0
for path in sys.argv[1:]:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        try:
            with socket.socket(socket.AF_UNIX, kind) as s:
                s.connect(path)
                for _ in range(2000):
                    s.send(b"<14>flood: " + b"x" * 100)
                    sent += 1
        except OSError:
            continue
print(sent)
"""
SOCKETS = ("/dev/log", "/run/systemd/journal/socket", "/run/systemd/journal/dev-log")


async def test_log(tmp_path, sandbox, unprotected, python):
    log = tmp_path / "log"
    received = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(log))
        server.settimeout(1)

        def take():
            nonlocal received
            try:
                while server.recv(512):
                    received += 1
            except TimeoutError:
                return

        reader = threading.Thread(target=take)
        reader.start()
        assert unprotected(python(FLOOD, log, inside=False)).stdout == "2000\n"
        reader.join()
        assert received == 2000
        run = await sandbox.exec(python(FLOOD, log, *SOCKETS, inside=True))
        assert run.text == "0\n", run
        take()
    assert received == 2000
