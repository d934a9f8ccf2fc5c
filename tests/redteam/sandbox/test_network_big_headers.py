"""Attack: headers without end, to fill the memory of whoever reads them whole."""

from __future__ import annotations

from loopback import Site


async def test_headers_without_end(networked, raw, decisions):
    line = "X-Filler: " + "x" * 1000 + "\r\n"
    many, long = line * 4000, "X-Long: " + "y" * 4_000_000 + "\r\n"
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        head = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n"
        assert "hello" in await raw(None, f"GET / HTTP/1.1\r\n{many}\r\n", port=site.port)
        assert len(site.got[0]) > 4_000_000
        target = f"GET http://{where}/{'z' * 4_000_000} HTTP/1.1\r\nHost: {where}\r\n\r\n"
        answers = await raw(sandbox, head + many + "\r\n", head + long + "\r\n", target)
    assert len(site.got) == 1
    # The sandbox gets the answer unless it is still writing when the proxy hangs up.
    assert all(answer == "" or answer.startswith("HTTP/1.1 431") for answer in answers), answers
    log = await decisions(sandbox)
    assert [decision for decision, _ in log] == ["refused"] * 3
    assert all("too long" in reason for _, reason in log), log
