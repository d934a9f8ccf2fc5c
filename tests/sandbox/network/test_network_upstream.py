"""An owner that itself gets out only through a proxy: requests are led through that one."""

from __future__ import annotations

import asyncio
import base64
import contextlib

import pytest

from loopback import Names, Site, say
from quintain.errors import ConfigError
from quintain.sandbox.network.dial import Upstream


class OwnersProxy:
    """A proxy of the owner's network: passes on what it is asked, and keeps the heads."""

    def __init__(self, port_of, status=200):
        self.port_of = port_of
        self.status = status
        self.heads = []
        self.port = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if self.status != 200:
            writer.write(f"HTTP/1.1 {self.status} No\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.port_of)
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            back.write(head)
        await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


CREDENTIALS = base64.b64encode(b"user:p@ss").decode()


async def test_http_is_led_through_it_with_its_credentials(way_out):
    async with Site() as site, OwnersProxy(site.port) as owners:
        url = f"http://user:p%40ss@127.0.0.1:{owners.port}"
        # The owner cannot resolve the name; its proxy can.
        gate, port = await way_out(Names(), {"http": url}, hosts=["shop.test"])
        request = b"GET http://shop.test/a HTTP/1.1\r\nHost: shop.test\r\n\r\n"
        answer = await say(port, request, wait=False)
        refused = await say(port, request.replace(b"shop", b"evil"))
    assert answer.endswith(b"hello")
    (head,) = owners.heads
    assert head.startswith(b"GET http://shop.test/a HTTP/1.1\r\nHost: shop.test\r\n"), head
    assert f"Proxy-Authorization: Basic {CREDENTIALS}".encode() in head
    assert refused.startswith(b"HTTP/1.1 403")
    assert [event.data["decision"] for event in gate.log.events()] == ["allowed", "refused"]


async def test_tls_is_led_through_it(way_out, authority):
    async with Site(context=authority.server("shop.test")) as site, OwnersProxy(site.port) as it:
        url = f"http://127.0.0.1:{it.port}"
        _, port = await way_out(Names(), {"https": url}, hosts=["shop.test"])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT shop.test:443 HTTP/1.1\r\nHost: shop.test:443\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(authority.client(), server_hostname="shop.test")
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.read(-1)).endswith(b"hello")
        writer.close()
    assert it.heads[0].startswith(b"CONNECT shop.test:443 HTTP/1.1\r\nHost: shop.test:443\r\n")


async def test_a_name_that_is_private_here_is_not_asked_for_there(way_out):
    async with Site() as site, OwnersProxy(site.port) as owners:
        url = f"http://127.0.0.1:{owners.port}"
        resolve = Names(inner_test=[["10.0.0.1"]])
        _, port = await way_out(resolve, {"http": url}, hosts=["inner.test"])
        answer = await say(port, b"GET http://inner.test/ HTTP/1.1\r\nHost: inner.test\r\n\r\n")
    assert b"not public" in answer
    assert owners.heads == []


async def test_what_needs_no_proxy_goes_straight(way_out):
    async with Site() as site, OwnersProxy(site.port) as owners:
        proxies = {"http": f"http://127.0.0.1:{owners.port}", "no": "site.test"}
        _, port = await way_out(None, proxies, private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        request = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
        assert (await say(port, request, wait=False)).endswith(b"hello")
    assert owners.heads == []


async def test_its_refusal_is_a_failure_that_tells_nothing_more(way_out):
    async with OwnersProxy(1, status=407) as owners:
        url = f"http://user:secret@127.0.0.1:{owners.port}"
        gate, port = await way_out(Names(), {"https": url}, hosts=["shop.test"])
        answer = await say(port, b"CONNECT shop.test:443 HTTP/1.1\r\nHost: shop.test\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502"), answer
    assert b"407" in answer
    assert b"secret" not in answer
    assert gate.log.events()[0].data["decision"] == "failed"


def test_what_is_no_proxy_is_told():
    with pytest.raises(ConfigError, match="HTTP_PROXY"):
        Upstream.of("socks5://localhost:1080")
    assert Upstream.of("proxy.test:3128") == Upstream("proxy.test", 3128, False, ())
    assert Upstream.of("https://proxy.test").port == 443
