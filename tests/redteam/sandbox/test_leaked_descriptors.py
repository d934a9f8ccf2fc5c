"""Attack: a descriptor of the host that leaked into a command, to walk out by it.

The first walls look at names; whoever holds a folder or a socket of the host needs none. What is
left is the second layer, Landlock: with it taken away the same sandbox is open.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket

import pytest

from quintain.errors import IsolationError
from quintain.sandbox import landlock
from quintain.sandbox.command import Capture, Report
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

READ = "import os; print(os.read(os.open('secret', 0, dir_fd=4), 99).decode())"
WRITE = "import os; os.open('planted', os.O_CREAT | os.O_WRONLY, dir_fd=4)"
CONNECT = """
import socket, sys
sock = socket.socket(fileno=4)
sock.connect("\\0" + sys.argv[1])
print(sock.recv(99).decode())
"""


@pytest.fixture(params=["c", "python"])
async def open_with(request):
    """Opens a sandbox with and without the second layer."""
    backends = []

    async def open_(*, layer):
        backend = NativeBackend(launcher=request.param)
        backend.landlock = layer
        backends.append(backend)
        try:
            return await backend.open(SandboxSpec())
        except IsolationError as error:
            pytest.skip(f"no native sandbox here: {error}")

    yield open_
    for backend in backends:
        await backend.close()


async def run_with(box, leaked, code, *arguments):
    """Runs Python inside with a leaked descriptor as its fourth; what it prints, and its errors."""
    loop = asyncio.get_running_loop()
    out, err, report = Capture(loop, 10_000), Capture(loop, 10_000), Report(loop)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    fds = (null, out.write_end, err.write_end, report.write_end, leaked)
    box.start_command(["python3", "-c", code, *arguments], fds)
    for fd in fds[:4]:
        os.close(fd)
    async with asyncio.timeout(20):
        await report.record
    for part in (out, err):
        part.finish()
    report.close()
    return bytes(out.data).decode(), bytes(err.data).decode()


def needs(layer):
    if layer not in landlock.layers(landlock.version()):
        pytest.skip(f"this kernel's Landlock (version {landlock.version()}) has no {layer}")


async def test_folder(open_with, tmp_path):
    needs("files")
    (tmp_path / "secret").write_text("host secret")
    tmp_path.chmod(0o777)
    for layer in (False, True):
        box = await open_with(layer=layer)
        folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            read = await run_with(box, folder, READ)
            wrote = await run_with(box, folder, WRITE)
        finally:
            os.close(folder)
        if layer:
            assert "PermissionError" in read[1], read
            assert "PermissionError" in wrote[1], wrote
            assert not (tmp_path / "planted").exists()
        else:
            assert read[0] == "host secret\n", f"the control: without the layer it is open: {read}"
            assert (tmp_path / "planted").exists()
            (tmp_path / "planted").unlink()


async def test_abstract_socket(open_with):
    needs("abstract sockets")
    name = f"quintain-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        server.setblocking(False)
        for layer in (False, True):
            box = await open_with(layer=layer)
            with socket.socket(socket.AF_UNIX) as leaked:
                running = asyncio.create_task(run_with(box, leaked.fileno(), CONNECT, name))
                if layer:
                    assert "PermissionError" in (await running)[1]
                    continue
                async with asyncio.timeout(20):
                    peer, _ = await asyncio.get_running_loop().sock_accept(server)
                with peer:
                    peer.sendall(b"host secret")
                    assert (await running)[0] == "host secret\n", "the control: it is open"
