"""Attack: a TLS hello whose real name is encrypted (ECH), behind the name of a listed host."""

from __future__ import annotations

from hellos import HelloServer, client_hello, server_hello

ENCRYPTED = (0xFE0D, b"\0" + bytes(40))


async def test_encrypted_hello(networked, raw, decisions):
    async with HelloServer(server_hello()) as server:
        strict = await networked(private_hosts=[f"site.test:{server.port}"])
        lenient = await networked(private_hosts=[f"site.test:{server.port}"], encrypted_hello=True)
        where = f"site.test:{server.port}"
        hello = client_hello("site.test", extensions=[ENCRYPTED])
        await raw(None, hello, port=server.port, then_close=True)
        assert server.got == [hello]
        sent = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode() + hello
        await raw(strict, sent, then_close=True)
        assert server.got[1:] == [b""]
        ((decision, reason),) = await decisions(strict)
        assert decision == "refused"
        assert "ECH" in reason
        # Whoever accepts what the proxy cannot see says so.
        await raw(lenient, sent, then_close=True)
        assert server.got[2:] == [hello]
