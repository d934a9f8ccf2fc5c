"""QEMU's control socket, spoken in QMP (QEMU Machine Protocol): one JSON object a line."""

from __future__ import annotations

import array
import asyncio
import json
import socket
from typing import Any

from quintain.errors import SandboxError

ANSWER_S = 60.0


class Monitor:
    """The owner's end of it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._buffer = b""

    async def _line(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            data = await loop.sock_recv(self._sock, 1 << 16)
            if not data:
                raise SandboxError("the virtual machine is gone")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    async def greet(self) -> None:
        """Opens the conversation."""
        async with asyncio.timeout(ANSWER_S):
            await self._line()
        await self.do("qmp_capabilities")

    async def do(self, command: str, fd: int = -1, **arguments: Any) -> Any:
        """Carries out a command.

        Args:
            command: its name.
            fd: a descriptor sent along.
            arguments: of the command, `_` for `-`.

        Raises:
            SandboxError: it failed, or the machine is gone.
        """
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        text = json.dumps({"execute": command, "arguments": given}).encode() + b"\n"
        rights = []
        if fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            async with asyncio.timeout(ANSWER_S):
                self._sock.sendmsg([text], rights, socket.MSG_NOSIGNAL)
                while True:
                    line = await self._line()
                    if "error" in line:
                        raise SandboxError(f"QEMU refused {command}: {line['error']['desc']}")
                    if "return" in line:
                        return line["return"]
        except TimeoutError as error:
            raise SandboxError(f"QEMU did not answer {command} within {ANSWER_S} s") from error
        except OSError as error:
            raise SandboxError(f"the virtual machine is gone ({error})") from error

    async def save(self, fd: int) -> None:
        """Stops the machine and writes its state to a file; it stays stopped."""
        await self.do("stop")
        await self.do("getfd", fd, fdname="state")
        await self.do("migrate-set-parameters", max_bandwidth=1 << 40)
        await self.do("migrate", uri="fd:state")
        async with asyncio.timeout(ANSWER_S):
            while True:
                state = await self.do("query-migrate")
                if state.get("status") == "completed":
                    return
                if state.get("status") in ("failed", "cancelled"):
                    raise SandboxError(f"QEMU could not save the machine: {state}")
                await asyncio.sleep(0.01)

    async def loaded(self) -> None:
        """Waits until a saved state was taken."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                status = (await self.do("query-status"))["status"]
                if status != "inmigrate":
                    return
                await asyncio.sleep(0.005)

    def close(self) -> None:
        """Hangs up."""
        self._sock.close()
