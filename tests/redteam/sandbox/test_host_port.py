"""Attack: connect to a server on the host's loopback."""

from __future__ import annotations

import socket

CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=3) as s:
    print(s.recv(10).decode())
"""


async def test_loopback(sandbox, any_launcher, unprotected, python):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        import threading

        stop = threading.Event()

        def serve():
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            control = unprotected(python(CONNECT, port, inside=False))
            assert control.stdout.strip() == "hello", control
            run = await sandbox.exec(python(CONNECT, port, inside=True))
        finally:
            stop.set()
            thread.join()
    assert run.exit_code == 1
    assert "ConnectionRefusedError" in run.error_text, run


async def test_its_own_loopback_works(sandbox):
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "c = socket.create_connection(s.getsockname()); s.accept()[0].sendall(b'ok');"
        "print(c.recv(2).decode())"
    )
    run = await sandbox.exec(["python3", "-c", code])
    assert run.text == "ok\n", run
