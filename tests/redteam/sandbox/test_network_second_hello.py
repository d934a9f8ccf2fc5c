"""Attack: a right TLS hello, and then a second one for another host that the server asked for."""

from __future__ import annotations

import pytest

from hellos import HelloServer, client_hello, retry_request

CHANGE = b"\x14\x03\x03\x00\x01\x01"
EARLY = b"\x17\x03\x03\x00\x05early"


def bad_pair(between):
    return client_hello("site.test") + between + client_hello("other.test", pieces=3)


@pytest.mark.parametrize("between", [b"", CHANGE, CHANGE + EARLY], ids=["bare", "change", "early"])
async def test_the_second_hello(networked, raw, decisions, between):
    async with HelloServer(retry_request()) as server:
        sandbox = await networked(private_hosts=[f"site.test:{server.port}"])
        sent = bad_pair(between)
        await raw(None, sent, port=server.port, then_close=True)
        assert b"other.test" in server.got[0]
        where = f"site.test:{server.port}"
        connect = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
        await raw(sandbox, connect + sent, then_close=True)
        good = client_hello("site.test") + between + client_hello("site.test", pieces=3)
        await raw(sandbox, connect + good + b"more", then_close=True)
    assert b"site.test" in server.got[1]
    assert b"other.test" not in server.got[1]
    assert server.got[2] == good + b"more"
    (refused, reason), (allowed, _) = await decisions(sandbox)
    assert (refused, allowed) == ("refused", "allowed")
    assert "other.test" in reason
