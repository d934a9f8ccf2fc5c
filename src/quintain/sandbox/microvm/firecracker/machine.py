"""One Firecracker process behind its jailer, and the vsock to its guest's agent. Unverified."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import SandboxError
from quintain.sandbox.microvm.firecracker.api import Api
from quintain.sandbox.microvm.firecracker.jailer import SOCKET, Cell
from quintain.sandbox.microvm.guest import Guest
from quintain.sandbox.microvm.process import Process

PORT = 1024
"""Where the agent listens on the guest's vsock."""
CID = 3
"""The guest's address; the host is 2."""
VSOCK = "/v.sock"
STATE, MEMORY = "/state", "/memory"
COMMAND_LINE = f"console=ttyS0 quiet panic=-1 reboot=t quintain.vsock={PORT}"
POLL_S = 0.01
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a guest has."""

    kernel: Path
    initial_disk: Path
    disks: tuple[Path, ...]
    memory_mb: int
    processors: int


class FirecrackerMachine:
    """A running Firecracker; made by `boot` or `restore`, whose callers set the deadline."""

    def __init__(self, process: Process, cell: Cell, api: Api) -> None:
        self.process, self.cell, self.api = process, cell, api
        self._guest: Guest | None = None

    @property
    def guest(self) -> Guest:
        """The connection to the agent."""
        if self._guest is None:
            raise SandboxError("the guest's agent is not connected")
        return self._guest

    @classmethod
    async def _begin(cls, cell: Cell, argv: Sequence[str]) -> FirecrackerMachine:
        process = Process(argv, ())
        cell.claim(process.pid)
        path = str(cell.root / SOCKET.lstrip("/"))
        while not _listens(path):
            if process.gone.done():
                said = process.said.decode("utf-8", "replace").strip()[-500:]
                raise SandboxError(f"Firecracker did not start: {said}")
            await asyncio.sleep(POLL_S)
        return cls(process, cell, Api(path))

    @classmethod
    async def boot(
        cls, cell: Cell, argv: Sequence[str], hardware: Hardware, uid: int
    ) -> FirecrackerMachine:
        """Starts a process and boots a guest in it.

        Raises:
            SandboxError: it refused, or ended.
        """
        given = [hardware.kernel, hardware.initial_disk, *hardware.disks]
        paths = [cell.give(file, uid) for file in given]
        machine = await cls._begin(cell, argv)
        try:
            api = machine.api
            await api.machine(processors=hardware.processors, memory_mb=hardware.memory_mb)
            await api.boot_source(kernel=paths[0], initial_disk=paths[1], arguments=COMMAND_LINE)
            for number, path in enumerate(paths[2:]):
                await api.drive(f"disk{number}", path)
            await api.vsock(cid=CID, path=VSOCK)
            await api.entropy()
            await api.start()
            await machine.connect()
            await machine.guest.greeted()
        except BaseException:
            await machine.end()
            raise
        return machine

    @classmethod
    async def restore(
        cls, cell: Cell, argv: Sequence[str], hardware: Hardware, uid: int, first: int
    ) -> FirecrackerMachine:
        """Starts a process that goes on where another was saved.

        Args:
            cell: of the new process, with what `save_into` put there.
            argv: of its jailer.
            hardware: the same as of the other.
            uid: whom the new process becomes.
            first: id of the first request to the agent.
        """
        for file in (hardware.kernel, hardware.initial_disk, *hardware.disks):
            cell.give(file, uid)
        machine = await cls._begin(cell, argv)
        try:
            await machine.api.load(state=STATE, memory=MEMORY)
            await machine.connect(first)
        except BaseException:
            await machine.end()
            raise
        return machine

    async def save_into(self, cell: Cell, uid: int) -> None:
        """Writes the guest to files in the cell of another, standing still for that long."""
        async with self.guest.silence():
            await self.api.set_state("Paused")
            try:
                await self.api.save(state=STATE, memory=MEMORY)
            finally:
                await self.api.set_state("Resumed")
            # Moved, not linked: the next snapshot would be written over this one.
            for path in (STATE, MEMORY):
                await asyncio.to_thread(cell.take, self.cell.root / path.lstrip("/"), uid)

    async def connect(self, first: int = 1) -> None:
        """Connects to the agent over the vsock, as soon as it listens."""
        path = str(self.cell.root / VSOCK.lstrip("/"))
        while not self.process.gone.done():
            with contextlib.suppress(OSError):
                self._guest = await Guest.connect(await dial(path, PORT), first)
                return
            await asyncio.sleep(POLL_S)
        raise SandboxError(f"Firecracker ended: {self.process.said[-500:]!r}")

    async def end(self) -> None:
        """Kills it and removes its cell; may be called twice."""
        self.process.kill()
        await self.api.close()
        if self._guest is not None:
            await self._guest.close()
        done, _ = await asyncio.wait([self.process.gone], timeout=END_S)
        if not done:
            raise SandboxError(f"Firecracker was not gone {END_S} s after it was killed")
        await asyncio.to_thread(self.cell.remove)


def _listens(path: str) -> bool:
    """Whether somebody accepts connections there: a socket's file appears before that."""
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(path) == 0


async def dial(path: str, port: int) -> socket.socket:
    """Connects to a port of a guest through the UNIX socket of its vsock.

    Raises:
        OSError: nobody listens there (yet).
    """
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        await loop.sock_connect(sock, path)
        await loop.sock_sendall(sock, f"CONNECT {port}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            # One byte at a time: what follows the line belongs to the agent's frames.
            data = await loop.sock_recv(sock, 1)
            if not data:
                raise ConnectionRefusedError(f"nobody listens on port {port} of the guest")
            answer += data
        if not answer.startswith(b"OK "):
            raise ConnectionRefusedError(f"the vsock answered {answer!r}")
    except BaseException:
        sock.close()
        raise
    return sock
