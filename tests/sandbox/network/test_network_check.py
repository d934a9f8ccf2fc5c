"""The probe's own look at the allow-list finds what gets through."""

from __future__ import annotations

import asyncio
import os

import pytest

from quintain.errors import CapabilityError
from quintain.protocols import ExecResult
from quintain.sandbox.network.check import allow_list
from quintain.task import SandboxSpec


class Careless:
    """A backend that isolates nothing, with a proxy that decides nothing."""

    name = "careless"
    capabilities = frozenset()

    async def open(self, spec):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ")[1].decode().removeprefix("http://").rstrip("/")
        there, back = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            head = await reader.read(4096)
        back.write(head)
        writer.write(await there.read(-1))
        await writer.drain()
        writer.close()
        back.close()

    async def exec(self, argv, *, timeout_s=None, **_):
        port = self.server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, "http_proxy": f"http://127.0.0.1:{port}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        return ExecResult(exit_code=process.returncode, stdout=out, stderr=err)

    async def close(self):
        self.server.close()


async def test_what_gets_through_is_named():
    found = await allow_list(Careless(), SandboxSpec())
    for what in ("another port", "its address", "as a number", "another name", "Host header",
                 "raw bytes", "without the proxy"):  # fmt: skip
        assert what in found, found
    assert "was not reached" not in found


async def test_a_backend_without_a_network_says_so():
    class Without(Careless):
        async def open(self, spec):
            raise CapabilityError("no network")

    with pytest.raises(CapabilityError):
        await allow_list(Without(), SandboxSpec())
