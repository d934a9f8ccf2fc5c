"""Attack: a tunnel to a listed host, with a TLS hello for another host on the same address."""

from __future__ import annotations

import asyncio

import pytest

from loopback import Site

FETCH = """
import socket, ssl, sys
address, port, target, name, trust = sys.argv[1:]
s = socket.create_connection((address, int(port)), timeout=10)
if target:
    s.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
    assert b" 200" in s.recv(1000)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    s = context.wrap_socket(s, server_hostname=name or None)
    s.sendall(b"GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n")
    print(s.recv(1000))
except (ssl.SSLError, OSError) as error:
    print("closed:", error)
"""


@pytest.mark.parametrize("name", ["other.test", "site.test.other.test", ""])
async def test_a_hello_for_another_host(networked, unprotected, python, decisions, authority, name):
    async with Site(context=authority.server("site.test", "other.test")) as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        control = python(FETCH, "127.0.0.1", site.port, "", name, "", inside=False)
        assert "hello" in (await asyncio.to_thread(unprotected, control)).stdout
        target = f"site.test:{site.port}"
        inside = python(FETCH, "127.0.0.1", 3128, target, name, "", inside=True)
        run = await sandbox.exec(inside)
        assert "closed:" in run.text, run
        ((decision, reason),) = await decisions(sandbox)
        assert decision == "refused"
        assert (name or "names no host") in reason
        right = python(FETCH, "127.0.0.1", 3128, target, "site.test", "", inside=True)
        assert "hello" in (await sandbox.exec(right)).text
    assert [got.count(b"GET") for got in site.got if got] == [1, 1]
