"""The allow-list over container backends: by name, through the owner's proxy, and told."""

from __future__ import annotations

import pytest

from loopback import Names, Site
from quintain.errors import IsolationError
from quintain.registry import sandboxes
from quintain.task import NetworkPolicy, SandboxSpec

ASK = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print("unreachable")
"""
DIRECT = """
import socket, sys
for address in (("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80)):
    try:
        socket.create_connection(address, timeout=3).close()
        print("connected")
    except OSError:
        print("unreachable")
"""
NETWORKED = ("docker", "podman", "runc", "crun")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in NETWORKED]
)
async def test_listed_names_only(name):
    names = Names(site_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    backend = sandboxes.get(name)(resolve=names)
    async with Site() as site:
        policy = NetworkPolicy(private_hosts=(f"site.test:{site.port}",))
        box = await backend.open(SandboxSpec(network=policy))
        try:
            urls = [f"http://{host}:{site.port}/" for host in ("site.test", "other.test")]
            run = await box.exec(["python3", "-c", ASK, *urls])
            assert run.text.split() == ["hello", "403"], run
            run = await box.exec(["python3", "-c", DIRECT, str(site.port)])
            assert run.text.split() == ["unreachable", "unreachable"], run
            events = await box.network_log()
            assert "network_log" in box.capabilities
            told = [(event.data["host"], event.data["decision"]) for event in events]
            assert told == [("site.test", "allowed"), ("other.test", "refused")], events
        finally:
            await box.close()
            await backend.close()
    assert len(site.got) == 1


@pytest.mark.gvisor
async def test_gvisor_refuses_by_name():
    backend = sandboxes.get("gvisor")()
    policy = NetworkPolicy(mode="allowlist", hosts=("site.test",))
    with pytest.raises(IsolationError, match="network stack") as caught:
        await backend.open(SandboxSpec(network=policy))
    assert caught.value.missing == ("network",)
    await backend.close()
