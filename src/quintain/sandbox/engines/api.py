"""The Engine API of Docker and Podman: HTTP over a UNIX socket (or TCP), and attached streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from quintain.errors import ConfigError, SandboxError, SandboxTimeout
from quintain.record import Json

CALL_S = 120.0
"""The longest any single call may take, unless it says otherwise."""
_FRAME = struct.Struct(">BxxxI")
_SAID_BYTES = 4000


class EngineError(SandboxError):
    """The engine refused a call.

    Args:
        status: of HTTP; 0: the engine cannot be reached.
        message: what it said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """A client of one engine, for one event loop.

    Args:
        address: `unix:///path` or `tcp://host:port`.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme == "unix" and parts.path:
            self.path: str | None = parts.path
            self._connector: aiohttp.BaseConnector = aiohttp.UnixConnector(parts.path, limit=0)
        elif parts.scheme in ("tcp", "http") and parts.hostname:
            self.path = None
            self._connector = aiohttp.TCPConnector(limit=0)
        else:
            raise ConfigError(
                f"engine address {address!r}: expected unix:///path/to.sock or tcp://host:port"
            )
        self.address = address
        self._host, self._port = parts.hostname or "engine", parts.port or 2375
        where = "engine" if self.path else f"{self._host}:{self._port}"
        self._base = f"http://{where}"
        self._session = aiohttp.ClientSession(connector=self._connector)

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, path: str, timeout_s: float, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, self._base + path, timeout=timeout, **options
            ) as answer:
                if answer.status >= 400:
                    raise EngineError(answer.status, _message(await answer.text(), answer.status))
                yield answer
        except TimeoutError as error:
            what = f"the engine at {self.address} did not answer {method} {path}"
            raise SandboxTimeout(f"{what} within {timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise EngineError(0, f"no engine at {self.address}: {error}") from error

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Json] | None = None,
        body: Json = None,
        data: Any = None,
        timeout_s: float = CALL_S,
    ) -> Json:
        """One call; returns the answer's JSON, None where it has none.

        Args:
            method: of HTTP.
            path: of the API.
            query: values that are no strings go as JSON.
            body: sent as JSON.
            data: sent as it is (a tar).
            timeout_s: seconds.

        Raises:
            EngineError: the engine refused it, or is not there.
            SandboxTimeout: it took too long.
        """
        options: dict[str, Any] = {"params": _query(query or {})}
        if body is not None:
            options["json"] = body
        if data is not None:
            options |= {"data": data, "headers": {"Content-Type": "application/x-tar"}}
        async with self._answer(method, path, timeout_s, **options) as answer:
            text = await answer.text()
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return text or None

    async def progress(
        self,
        path: str,
        *,
        query: Mapping[str, Json],
        data: Any = None,
        timeout_s: float,
    ) -> list[dict[str, Json]]:
        """A call that answers with a stream of JSON lines (a build, a pull, an import).

        Raises:
            EngineError: it failed; the message is the engine's, with the end of its output.
        """
        options: dict[str, Any] = {"params": _query(query)}
        if data is not None:
            options |= {"data": data, "headers": {"Content-Type": "application/x-tar"}}
        words: list[dict[str, Json]] = []
        async with self._answer("POST", path, timeout_s, **options) as answer:
            text = await answer.text()
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                word = json.loads(line)
                words.append(word if isinstance(word, dict) else {"stream": str(word)})
        for word in words:
            if "error" in word:
                said = "".join(str(word.get("stream", "")) for word in words)[-2000:]
                raise EngineError(500, f"{word['error']}{': ' + said if said else ''}")
        return words

    async def has_files(self, container: str, path: str) -> bool:
        """Whether a folder of a container is there and has anything in it.

        Args:
            container: its part of the API's path.
            path: absolute.
        """
        query = {"path": path}
        try:
            async with self._answer("GET", f"{container}/archive", CALL_S, params=query) as answer:
                # A tar: one header of 512 bytes an entry, the folder's own first; zeros end it.
                head = await answer.content.readexactly(1024)
        except EngineError as error:
            if error.status == 404:
                return False
            raise
        return head[512] != 0

    async def attach(self, container: str) -> AttachedLink:
        """The stream of a container's first process, which waits for its owner's first word.

        Raises:
            EngineError: it cannot be attached to.
        """
        try:
            if self.path is not None:
                reader, writer = await asyncio.open_unix_connection(self.path)
            else:
                reader, writer = await asyncio.open_connection(self._host, self._port)
            writer.write(
                f"POST /containers/{quote(container)}/attach"
                "?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
                f"Host: {self._host}\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                "Content-Length: 0\r\n\r\n".encode()
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CALL_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise EngineError(0, f"cannot attach to a container: {error}") from error
        status = int(head.split(None, 2)[1])
        if status not in (101, 200):
            writer.close()
            raise EngineError(status, f"cannot attach to a container: {head[:300]!r}")
        return AttachedLink(reader, writer)


class AttachedLink:
    """An attached stream, taken apart: stdout to read, stderr kept for messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._said = bytearray()
        self._kind, self._left = 1, 0

    async def read(self) -> bytes:
        """The next bytes of stdout; empty at the end."""
        while True:
            if not self._left:
                try:
                    head = await self._reader.readexactly(_FRAME.size)
                except asyncio.IncompleteReadError:
                    return b""
                self._kind, self._left = _FRAME.unpack(head)
                continue
            data = await self._reader.read(min(self._left, 1 << 20))
            if not data:
                return b""
            self._left -= len(data)
            if self._kind == 1:
                return data
            self._said += data[: max(0, _SAID_BYTES - len(self._said))]

    def write(self, data: bytes) -> None:
        """Sends bytes to stdin."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Waits until few unsent bytes are left."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def said(self) -> str:
        """What came on stderr."""
        return self._said.decode("utf-8", "replace")

    async def close(self) -> None:
        """Hangs up: the container's stdin ends."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _message(text: str, status: int) -> str:
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return str(found.get("message") or found.get("cause") or text)[:2000]
    return text.strip()[:2000] or f"the engine answered with status {status}"


def _query(values: Mapping[str, Json]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }
