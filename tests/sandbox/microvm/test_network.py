"""A guest has no network device; what its policy allows goes over the serial port to the proxy."""

from __future__ import annotations

import asyncio

import pytest

from loopback import Names, Site
from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.task import NetworkPolicy, SandboxSpec

pytestmark = [pytest.mark.microvm, pytest.mark.slow]

FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(len(urllib.request.urlopen(url, timeout=60).read()))
    except OSError as error:
        print(getattr(error, "code", type(error).__name__))
"""


@pytest.fixture
async def networked():
    names = Names(site_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    backend = MicrovmBackend(resolve=names)
    yield backend
    await backend.close()


async def test_listed_hosts_are_reached_and_others_are_not(networked):
    body = bytes(range(256)) * 4000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with Site(answer=head + body) as site:
        policy = NetworkPolicy(private_hosts=(f"site.test:{site.port}",))
        box = await networked.open(SandboxSpec(network=policy))
        listed, unlisted = (f"http://{host}.test:{site.port}/" for host in ("site", "other"))
        argv = ["python3", "-c", FETCH, listed, unlisted]
        run = await box.exec(argv, timeout_s=200)
        assert run.text.split() == [str(len(body)), "403"], run
        runs = await asyncio.gather(
            *(box.exec(["python3", "-c", FETCH, listed], timeout_s=200) for _ in range(3))
        )
        assert [run.text.strip() for run in runs] == [str(len(body))] * 3
        log = await box.network_log()
        decisions = [(event.data["host"], event.data["decision"]) for event in log]
        assert decisions.count(("site.test", "allowed")) == 4, log
        assert [host for host, decision in decisions if decision != "allowed"] == ["other.test"]
        direct = f"import socket; socket.create_connection(('127.0.0.1', {site.port}), 5)"
        run = await box.exec(["python3", "-c", direct], timeout_s=200)
        assert "refused" in run.error_text, "the host's loopback is not the guest's"


async def test_a_fork_has_a_way_out_of_its_own(networked):
    async with Site() as site:
        policy = NetworkPolicy(private_hosts=(f"site.test:{site.port}",))
        box = await networked.open(SandboxSpec(network=policy))
        other = await box.fork()
        url = f"http://site.test:{site.port}/"
        for one in (box, other):
            run = await one.exec(["python3", "-c", FETCH, url], timeout_s=200)
            assert run.text == "5\n", run
            assert len(await one.network_log()) == 1
