"""Attack: a URL with a listed host, and a Host header for another host on the same server."""

from __future__ import annotations

from loopback import Site

ODD = [
    "Host: other.test\r\n",
    "Host: site.test:{port}\r\nHost: other.test\r\n",
    "Host: site.test:{port}@other.test\r\n",
    "Host: site.test:{port}.other.test\r\n",
    "Host: site.test\r\n",
    "Host: site.test:{port},other.test\r\n",
    "Host:\r\n",
    "Host : other.test\r\nHost: site.test:{port}\r\n",
]


async def test_another_host(networked, raw, decisions):
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        rest = [f" HTTP/1.1\r\n{odd.format(port=site.port)}\r\n" for odd in ODD]
        control = await raw(None, *[f"GET /{one}" for one in rest], port=site.port)
        assert all("hello" in answer for answer in control)
        url = f"http://site.test:{site.port}/"
        answers = await raw(sandbox, *[f"GET {url}{one}" for one in rest])
    for odd, answer in zip(ODD, answers, strict=True):
        assert answer.startswith(("HTTP/1.1 400", "HTTP/1.1 403")), (odd, answer)
    assert len(site.got) == len(ODD)
    assert [decision for decision, _ in await decisions(sandbox)] == ["refused"] * len(ODD)


async def test_a_host_that_is_named_in_connection_stays(networked, raw):
    """A header named in Connection is dropped on the way: not the host's."""
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        request = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\nConnection: host, x-a\r\n"
        assert "hello" in await raw(None, request + "X-A: 1\r\n\r\n", port=site.port)
        assert "hello" in await raw(sandbox, request + "X-A: 1\r\n\r\n", then_close=True)
    assert site.got[1].lower().count(b"host:") == 1
    assert b"X-A" not in site.got[1]
