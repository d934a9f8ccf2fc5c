"""Attack: hide a forbidden request behind an allowed one on the same connection."""

from __future__ import annotations

import pytest

from loopback import Site


@pytest.mark.parametrize("second", ["http://other.test:{port}/", "/secret", "//other.test/"])
async def test_the_second_request(networked, raw, decisions, second):
    async with Site(close_after=False) as site, Site() as other:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        first = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n"
        target = second.format(port=other.port)
        behind = f"GET {target} HTTP/1.1\r\nHost: {where}\r\n\r\n"
        # Whoever passes the bytes on after one look sends both to the host.
        await raw(None, first + behind, port=site.port, then_close=True)
        assert site.got[0].count(b"GET") == 2
        answer = await raw(sandbox, first + behind)
        assert answer.count("HTTP/1.1 200") == 1, answer
        assert answer.count("HTTP/1.1 40") == 1, answer
    assert site.got[1].count(b"GET") == 1
    assert b"secret" not in site.got[1]
    assert other.got == []
    assert [decision for decision, _ in await decisions(sandbox)] == ["allowed", "refused"]
