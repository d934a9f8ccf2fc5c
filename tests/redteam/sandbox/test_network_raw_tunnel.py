"""Attack: use a tunnel to a listed host for something that is not TLS."""

from __future__ import annotations

from hellos import client_hello
from loopback import Site

HTTP = b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"


ODD = [
    HTTP,
    b"SSH-2.0-OpenSSH_9.2\r\n" + HTTP,
    b"\x16" + HTTP,
    b"\x16\x03\x01\x00\x00" + HTTP,
    b"\x16\x03\x01\xff\xff" + HTTP,
    b"\x80\x2e\x01\x03\x01" + HTTP,
    client_hello("site.test")[:60] + HTTP * 2000,
    client_hello("site.test").replace(b"\x16\x03\x01", b"\x17\x03\x01", 1) + HTTP,
    HTTP[:3],
    b"",
]


async def test_raw_bytes(networked, raw, decisions):
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        await raw(None, *[data + HTTP for data in ODD], port=site.port, then_close=True)
        assert all(b"other.test" in got for got in site.got)
        where = f"site.test:{site.port}"
        connect = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
        answers = await raw(sandbox, *[connect + data for data in ODD], then_close=True)
    assert not any("hello" in answer for answer in answers), answers
    assert not any(site.got[len(ODD) :]), site.got
    log = await decisions(sandbox)
    assert [decision for decision, _ in log] == ["refused"] * len(ODD), log
