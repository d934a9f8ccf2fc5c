"""What a rollout's sandbox asks of the network lands in its stored trajectory."""

from __future__ import annotations

import pytest

import quintain as q
from loopback import Names, Site
from quintain.errors import IsolationError
from quintain.policies.scripted import Scripted
from quintain.rollouts import Host, Job, rollout
from quintain.sandbox.native import NativeBackend
from quintain.store import Store
from quintain.task import NetworkPolicy

FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except OSError as error:
        print(error)
"""


async def test_events_of_play_and_of_judging_are_stored(tmp_path):
    async def fetch(url: str, sandbox) -> str:
        """Fetches a page."""
        run = await sandbox.exec(["python3", "-c", FETCH, url])
        return run.text + run.error_text

    async def look(context) -> q.Verdict:
        asked = [event.data["decision"] for event in context.trajectory.events]
        await context.sandbox.exec(["python3", "-c", FETCH, "http://late.test/"])
        return q.Verdict.of(asked == ["allowed", "refused"])

    def call(url):
        arguments = {"url": url}
        return q.Message(
            role="assistant",
            content=[{"type": "tool_call", "id": "1", "name": "fetch", "arguments": arguments}],
        )

    class Looks:
        name, kind = "looks", "formal"
        judge = staticmethod(look)

    async with Site() as site:
        url = f"http://site.test:{site.port}/"
        env = q.Environment(
            [{"id": "t", "prompt": "What does the site say?"}],
            verifier=Looks(),
            tools=[fetch],
            sandbox=q.SandboxSpec(network=NetworkPolicy(private_hosts=[f"site.test:{site.port}"])),
            name="browsing",
        )
        policy = Scripted([call(url), call("http://other.test/"), "hello"])
        backend = NativeBackend(resolve=Names(site_test=[["127.0.0.1"]]))
        try:
            await (await backend.open(q.SandboxSpec())).close()
        except IsolationError as error:
            pytest.skip(f"no native sandbox here: {error}")
        with Store.begin(tmp_path / "run", kind="eval", identity={}) as store:
            async with Host(env, policy, store=store, backend=backend) as host:
                await rollout(Job(env.tasks.get("t"), "eval:browsing@v0", 0), host)
            (row,) = store.rows()
            kept = store.get(row.key)
        await backend.close()
    assert kept.outcome == q.Outcome.SOLVED, kept
    events = [event for event in kept.events if event.kind == "network.request"]
    found = [(event.data["host"], event.data["decision"]) for event in events]
    assert found == [("site.test", "allowed"), ("other.test", "refused"), ("late.test", "refused")]
    assert events[0].data["down"] == len(site.answer)
    assert [event.at_s for event in kept.events] == sorted(event.at_s for event in kept.events)
    assert 0 < events[0].at_s < kept.timing.total_s
