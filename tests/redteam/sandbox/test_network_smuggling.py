"""Attack: a request whose length proxy and host may read differently, with another one inside."""

from __future__ import annotations

from loopback import Site

HIDDEN = "GET /hidden HTTP/1.1\r\nHost: other.test\r\n\r\n"
WAYS = {
    "both": "Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "both, the other way": "Transfer-Encoding: chunked\r\nContent-Length: {n}\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "two lengths": "Content-Length: 0\r\nContent-Length: {n}\r\n\r\n" + HIDDEN,
    "odd coding": "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two codings": "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "space before the colon": "Content-Length : {n}\r\n\r\n" + HIDDEN,
    "signed length": "Content-Length: +{n}\r\n\r\n" + HIDDEN,
    "folded line": "X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: -1\r\n\r\n" + HIDDEN,
    "carriage return": "X: a\rContent-Length: 5\r\n\r\n" + HIDDEN,
    "nul": "X: a\0b\r\n\r\n" + HIDDEN,
    "chunk of no number": "Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n" + HIDDEN,
}


async def test_an_ambiguous_request(networked, raw, decisions):
    async with Site(close_after=False) as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\n"
        requests = [head + way.format(n=len(HIDDEN)) for way in WAYS.values()]
        await raw(None, *requests, port=site.port, then_close=True)
        assert all(b"GET /hidden" in got for got in site.got), site.got
        answers = await raw(sandbox, *requests, then_close=True)
    for way, answer in zip(WAYS, answers, strict=True):
        assert "HTTP/1.1 200" not in answer or "HTTP/1.1 40" in answer, (way, answer)
    assert not any(b"hidden" in got for got in site.got[len(WAYS) :]), site.got
    log = await decisions(sandbox)
    assert sum(decision == "refused" for decision, _ in log) >= len(WAYS) - 1, log


async def test_a_body_is_passed_on_as_one_body(networked, raw):
    """What looks like a request is a body where the length says so."""
    async with Site(close_after=False) as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\n"
        request = f"{head}Content-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}"
        assert "hello" in await raw(sandbox, request, then_close=True)
    (got,) = site.got
    assert f"Content-Length: {len(HIDDEN)}".encode() in got
    assert got.endswith(HIDDEN.encode())
