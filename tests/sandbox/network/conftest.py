"""A proxy over a listener on loopback: what stands in a sandbox's namespace is only the socket."""

from __future__ import annotations

import socket

import pytest

from loopback import Authority, Names
from quintain.sandbox.network import Proxy
from quintain.task import NetworkPolicy


@pytest.fixture
def names():
    """A resolver that every proxy of the test asks; everything is on loopback."""
    return Names(site_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])


@pytest.fixture
async def way_out(names):
    """Opens gates: gives the gate and the port of its proxy."""
    proxies = []

    async def open_(resolve=None, proxies_of_owner=None, on_event=None, **policy):
        proxy = Proxy(resolve=resolve or names, proxies=proxies_of_owner or {})
        proxies.append(proxy)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        gate = await proxy.serve(listener, NetworkPolicy(**policy), on_event)
        return gate, port

    yield open_
    for proxy in proxies:
        await proxy.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A certificate authority of the tests."""
    return Authority(tmp_path_factory.mktemp("authority"))
