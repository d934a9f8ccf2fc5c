"""Attack: ignore the proxy and connect to an address: the host's loopback, a neighbour."""

from __future__ import annotations

import pytest

from loopback import Site

GET = "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n"
CONNECT = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.create_connection((address, 80), timeout=3).close()
        print(address, "reached")
    except OSError as error:
        print(address, error.strerror or error)
"""


async def test_the_hosts_loopback(networked, any_launcher, raw):
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        assert "hello" in await raw(None, GET, port=site.port)
        with pytest.raises(AssertionError, match="Connection refused"):
            await raw(sandbox, GET, port=site.port)
    assert len(site.got) == 1


async def test_other_addresses(networked, python):
    sandbox = await networked(mode="open")
    addresses = ["192.0.2.1", "10.0.0.1", "169.254.169.254", "2001:db8::1", "fe80::1", "224.0.0.1"]
    run = await sandbox.exec(python(CONNECT, *addresses, inside=True))
    assert "reached" not in run.text, run
    # "Cannot assign": where a container has no IPv6 at all.
    refusals = sum(run.text.count(word) for word in ("unreachable", "Invalid", "Cannot assign"))
    assert refusals == len(addresses), run
