"""Attack: carry more out, or draw more in, than the sandbox may."""

from __future__ import annotations

import pytest

from loopback import ANSWER, Site


@pytest.mark.parametrize("way", ["up", "up in chunks", "down", "down without end", "many"])
async def test_more_bytes_than_allowed(networked, raw, decisions, way):
    limit = 10_000 if way == "many" else 100_000
    big = "x" * 400_000
    answer = {
        "down": b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + big.encode(),
        "down without end": b"HTTP/1.1 200 OK\r\n\r\n" + big.encode(),
    }.get(way, ANSWER)
    async with Site(answer=answer, close_after=not way.startswith("up")) as site:
        where = f"site.test:{site.port}"
        sandbox = await networked(private_hosts=[where], max_bytes=limit, requests_per_s=1000)
        rest = f" HTTP/1.1\r\nHost: {where}\r\n\r\n"
        if way == "up":
            rest = f" HTTP/1.1\r\nHost: {where}\r\nContent-Length: 400000\r\n\r\n{big}"
        if way == "up in chunks":
            chunks = f"{len(big):x}\r\n{big}\r\n0\r\n\r\n"
            rest = f" HTTP/1.1\r\nHost: {where}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        count = 150 if way == "many" else 1
        verb = "POST" if way.startswith("up") else "GET"
        straight = [f"{verb} /{rest}"] * count
        control = await raw(None, *straight, port=site.port, then_close=True)
        if way == "many":
            assert sum(map(len, (*site.got, *control))) > limit, "small ones, together"
        else:
            assert len(site.got[0]) + len(control) > 4 * limit
        site.got.clear()
        attacks = [f"{verb} http://{where}/{rest}"] * count
        answers = await raw(sandbox, *attacks, then_close=True)
        passed = sum(len(got) for got in site.got)
        back = 100 * answers.count("x" * 100) if isinstance(answers, str) else 0
        assert passed + back <= limit
        # Nothing passes any more, and it is told why.
        last = await raw(sandbox, f"GET http://{where}/{rest}", then_close=True)
        assert last.startswith("HTTP/1.1 403"), last
        assert "used up" in last
        events = await sandbox.network_log()
    log = [event.data for event in events if event.kind == "network.request"]
    assert log[0]["decision"] in ("refused", "allowed")
    used = sum(event.data["up"] + event.data["down"] for event in events)
    assert limit - 200 <= used <= limit
