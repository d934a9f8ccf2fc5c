"""Finds out whether a backend's allow-list holds: a program inside tries to get past it."""

from __future__ import annotations

import asyncio

from quintain.protocols import SandboxBackend
from quintain.sandbox.network.dial import OWNER
from quintain.task import NetworkPolicy, SandboxSpec

WALL = "network allow-list"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nthrough"
TRY_S = 20.0

PROGRAM = """
import os, socket, sys, urllib.parse
name, listed, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
def ask(data, address=None):
    with socket.create_connection(address or (proxy.hostname, proxy.port), timeout=5) as s:
        s.sendall(data.encode())
        got = b""
        while b"through" not in got and (piece := s.recv(4096)):
            got += piece
            if data.startswith("CONNECT") and got.startswith(b"HTTP/1.1 200"):
                data = ""
                s.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
                s.shutdown(socket.SHUT_WR)
    return got
def get(host, header=None):
    return f"GET http://{host}/ HTTP/1.1\\r\\nHost: {header or host}\\r\\n\\r\\n"
def connect(host):
    return f"CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n"
here = f"{name}:{listed}"
if b"through" not in ask(get(here)):
    print("the listed host was not reached")
for what, data, address in (
    ("another port", get(f"{name}:{other}"), None),
    ("its address", get(f"127.0.0.1:{listed}"), None),
    ("its address as a number", connect(f"2130706433:{listed}"), None),
    ("another name", get(f"localhost:{listed}"), None),
    ("another Host header", get(here, f"localhost:{listed}"), None),
    ("raw bytes in a tunnel", connect(here), None),
    ("the host without the proxy", get(here), ("127.0.0.1", listed)),
):
    try:
        got = ask(data, address)
    except OSError:
        continue
    if b"through" in got:
        print(what)
try:
    socket.getaddrinfo("example.com", 80)
    print("names resolve")
except OSError:
    pass
"""


async def allow_list(backend: SandboxBackend, spec: SandboxSpec, patience: float = 1.0) -> str:
    """What got past the allow-list of a backend's sandboxes; empty: it holds.

    Args:
        backend: opens the sandbox.
        spec: of the sandbox, without a network.
        patience: how many times longer than usual it may take.

    Raises:
        IsolationError: the backend has no network, and says so.
        CapabilityError: the same.
    """
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    other = await asyncio.start_server(_answer, "127.0.0.1", 0)
    listed, unlisted = (one.sockets[0].getsockname()[1] for one in (server, other))
    policy = NetworkPolicy(private_hosts=(f"{OWNER}:{listed}",))
    try:
        sandbox = await backend.open(spec.model_copy(update={"network": policy}))
        try:
            argv = ["python3", "-c", PROGRAM, OWNER, str(listed), str(unlisted)]
            run = await sandbox.exec(argv, timeout_s=TRY_S * patience)
        finally:
            await sandbox.close()
    finally:
        server.close()
        other.close()
    said = run.error_text.strip().splitlines()[-1:] if run.exit_code else []
    return "; ".join([*run.text.split("\n"), *said]).strip("; ")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(TRY_S):
            await reader.read(4096)
            writer.write(ANSWER)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()
