"""Snapshots of sandboxes with a network: each that comes of one has a way out of its own."""

from __future__ import annotations

from loopback import Names, Site
from quintain.sandbox.native import NativeBackend
from quintain.task import NetworkPolicy, SandboxSpec

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read())"


async def test_fork_and_restore(backend):
    async with Site() as site:
        url = f"http://site.test:{site.port}/"
        inner = NativeBackend(
            launcher=backend.launcher, resolve=Names(site_test=[["127.0.0.1"]]), allow_weaker=True
        )
        policy = NetworkPolicy(private_hosts=(f"site.test:{site.port}",))
        box = await inner.open(SandboxSpec(network=policy))
        fork = await box.fork()

        async def asks(one):
            run = await one.exec(["python3", "-c", FETCH, url])
            assert run.text.strip() == "b'hello'", run

        await asks(box)
        await asks(fork)
        assert [len(await one.network_log()) for one in (box, fork)] == [1, 1]
        await box.restore(await box.snapshot())
        await asks(box)
        assert len(await box.network_log()) == 2, "what was asked before a restore is still told"
        await inner.close()
