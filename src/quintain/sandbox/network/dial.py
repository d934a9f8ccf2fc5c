"""From the owner to a host: to an address that was checked, or by the owner's own proxy.

Where the owner itself reaches the network only through a proxy (the usual environment variables),
hosts are reached through that one: it resolves, so addresses are checked only where the owner can
resolve the name too.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

import h11

from quintain.errors import ConfigError
from quintain.sandbox.network.names import bracketed, is_address, is_public
from quintain.sandbox.network.resolve import Resolve

OWNER = "host.internal"
"""The name of the owner's own loopback, for what it serves to its sandboxes there."""
OWNERS_ADDRESSES = ["127.0.0.1", "::1"]
CONNECT_S = 10.0
MOST_ADDRESSES = 4
READ_BYTES = 65_536
"""How much of a stream is held at once, in each direction."""


class Refusal(Exception):
    """A request that is answered by the proxy itself."""

    def __init__(self, status: int, reason: str, decision: str = "refused") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.decision = decision


@dataclass(frozen=True, slots=True)
class Line:
    """A connection to a host, or to the owner's proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    proxied: tuple[tuple[str, str], ...] | None = None
    """Where the owner's proxy takes the request: headers for it. None: this is the host itself."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The owner's own proxy."""

    host: str
    port: int
    tls: bool
    headers: tuple[tuple[str, str], ...]
    """Its credentials, which never reach a sandbox."""

    @classmethod
    def of(cls, url: str) -> Upstream:
        """From the value of an environment variable.

        Raises:
            ConfigError: it is no URL of an HTTP proxy.
        """
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(
                "this host's own proxy (HTTP_PROXY, HTTPS_PROXY) is no http:// or https:// URL: "
                "sandboxes cannot be led through it"
            )
        headers: tuple[tuple[str, str], ...] = ()
        if parts.username is not None:
            words = (
                urllib.parse.unquote(parts.username),
                urllib.parse.unquote(parts.password or ""),
            )
            token = base64.b64encode(":".join(words).encode()).decode()
            headers = (("Proxy-Authorization", f"Basic {token}"),)
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), tls, headers)


class Dialer:
    """Connects to hosts.

    Args:
        resolve: gives the addresses of a name.
        proxies: the owner's own proxies, `http`, `https` and `no`, as in `HTTPS_PROXY`; None: as
            the environment says.
    """

    def __init__(self, resolve: Resolve, proxies: Mapping[str, str] | None = None) -> None:
        self.resolve = resolve
        self.proxies = dict(urllib.request.getproxies_environment() if proxies is None else proxies)

    def upstream(self, name: str, port: int, *, tunnel: bool) -> Upstream | None:
        """The owner's own proxy for a host, if it has one."""
        url = self.proxies.get("https" if tunnel else "http") or self.proxies.get("all")
        if not url or name == OWNER:
            return None
        where = f"{bracketed(name)}:{port}"
        if urllib.request.proxy_bypass_environment(where, self.proxies):  # type: ignore[attr-defined]
            return None
        return Upstream.of(url)

    async def connect(self, name: str, port: int, *, private: bool, tunnel: bool) -> Line:
        """A connection to a host that the rules allow.

        Args:
            name: in its one spelling.
            port: of the host.
            private: whether it may be at any address.
            tunnel: whether raw bytes are to be carried; else one request.

        Raises:
            Refusal: its addresses are not public, or it cannot be reached.
        """
        upstream = self.upstream(name, port, tunnel=tunnel)
        try:
            addresses = await self._addresses(name)
        except OSError as error:
            if upstream is None:
                raise Refusal(502, "the name does not resolve", "failed") from error
            addresses = []
        fit = addresses if private else [one for one in addresses if is_public(one)]
        if addresses and not fit:
            raise Refusal(403, "its address is not public")
        if upstream is not None:
            return await self._through(upstream, name, port, tunnel)
        if not fit:
            raise Refusal(502, "the name does not resolve", "failed")
        return await self._straight(fit[:MOST_ADDRESSES], port)

    async def _addresses(self, name: str) -> list[str]:
        if name == OWNER:
            return OWNERS_ADDRESSES
        return [name] if is_address(name) else await self.resolve(name)

    async def _straight(self, addresses: list[str], port: int) -> Line:
        why: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_S / len(addresses)):
                    return Line(*await asyncio.open_connection(address, port, limit=READ_BYTES))
            except OSError as error:  # TimeoutError is one
                why = error
        timed_out = isinstance(why, TimeoutError)
        what = "it does not answer" if timed_out else "it refused the connection"
        raise Refusal(504 if timed_out else 502, what, "failed") from why

    async def _through(self, upstream: Upstream, name: str, port: int, tunnel: bool) -> Line:
        context = ssl.create_default_context() if upstream.tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    upstream.host, upstream.port, ssl=context, limit=READ_BYTES
                )
                if not tunnel:
                    return Line(reader, writer, upstream.headers)
                try:
                    await _ask_for_tunnel(reader, writer, f"{bracketed(name)}:{port}", upstream)
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, h11.RemoteProtocolError) as error:
            raise Refusal(502, "this host's own proxy does not answer", "failed") from error
        return Line(reader, writer)


async def _ask_for_tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str, upstream: Upstream
) -> None:
    talk = h11.Connection(h11.CLIENT)
    headers = [("Host", where), *upstream.headers]
    writer.write(talk.send(h11.Request(method="CONNECT", target=where, headers=headers)))
    while (event := talk.next_event()) is h11.NEED_DATA:
        talk.receive_data(await reader.read(READ_BYTES))
    status = event.status_code if isinstance(event, h11.Response) else 0
    # In TLS the client speaks first: nothing may follow the answer yet.
    if not 200 <= status < 300 or talk.trailing_data[0]:
        raise Refusal(502, f"this host's own proxy refused it ({status})", "failed")
