"""Attack: reach another service of a listed host."""

from __future__ import annotations

from loopback import Site


async def test_other_port(networked, raw, decisions):
    async with Site() as site, Site() as service:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}", "*.test:1"])
        request = "GET {target} HTTP/1.1\r\nHost: {where}\r\n\r\n"
        where = f"site.test:{service.port}"
        control = request.format(target="/", where=where)
        assert "hello" in await raw(None, control, port=service.port)
        for attack in (
            request.format(target=f"http://{where}/", where=where),
            f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n",
            request.format(target=f"http://{where}0/", where=f"{where}0"),
            request.format(target="http://site.test:0/", where="site.test:0"),
            request.format(target=f"http://site.test:+{site.port}/", where=where),
        ):
            answer = await raw(sandbox, attack)
            assert answer.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), answer
    assert len(service.got) == 1
    assert site.got == []
    assert {decision for decision, _ in await decisions(sandbox)} == {"refused"}
