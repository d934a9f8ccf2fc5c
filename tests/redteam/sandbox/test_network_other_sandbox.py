"""Attack: use another sandbox's way out, or its allowance."""

from __future__ import annotations

import asyncio

import pytest

from loopback import Site


async def test_another_sandboxs_proxy(networked, open_sandbox, any_launcher, raw):
    async with Site() as site:
        where = f"site.test:{site.port}"
        request = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n"
        rich, poor = await asyncio.gather(
            networked(private_hosts=[where]), networked(hosts=["other.test"], max_bytes=1000)
        )
        without = await open_sandbox()
        assert "hello" in await raw(rich, request, then_close=True)
        assert (await raw(poor, request)).startswith("HTTP/1.1 403")
        with pytest.raises(AssertionError, match="Connection refused"):
            await raw(without, request)
        # What one asks for is in its own log alone.
        assert len(await rich.network_log()) == 1
        assert len(await poor.network_log()) == 1
        assert not hasattr(without, "network_log") or await without.network_log() == []
    assert len(site.got) == 1


async def test_a_closed_sandbox_leaves_no_way_out(networked, raw):
    async with Site(close_after=False, answer=b"") as site:
        where = f"site.test:{site.port}"
        sandbox = await networked(private_hosts=[where])
        request = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n"
        waiting = asyncio.create_task(raw(sandbox, request))
        while not site.got:
            await asyncio.sleep(0.01)
        await sandbox.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert sandbox._gate.connections == 0
        (event,) = await sandbox.network_log()
    assert event.data["decision"] == "failed"
    assert event.data["reason"] == "cut off"
