"""Attack: turn an allowed HTTP request into a raw connection by an upgrade."""

from __future__ import annotations

from loopback import Site

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: raw\r\nConnection: upgrade\r\n\r\nraw bytes"


async def test_upgrade(networked, raw, decisions):
    async with Site(answer=SWITCH, close_after=False) as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        rest = f" HTTP/1.1\r\nHost: {where}\r\nUpgrade: raw\r\nConnection: upgrade\r\n\r\nsecret"
        control = await raw(None, f"GET /{rest}", port=site.port, then_close=True)
        assert "raw bytes" in control
        assert b"secret" in site.got[0]
        answer = await raw(sandbox, f"GET http://{where}/{rest}", then_close=True)
    assert answer.startswith("HTTP/1.1 502"), answer
    assert "raw bytes" not in answer
    assert b"secret" not in site.got[1]
    assert b"pgrade" not in site.got[1]
    assert (await decisions(sandbox))[0][0] == "failed"
