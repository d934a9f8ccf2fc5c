"""Single checks before training, on what they look at."""

from functools import partial
from types import SimpleNamespace

import pytest

import quintain as q
from quintain.loop import preflight
from quintain.loop.preflight import golds_are_sound, verifier_withstands_attacks
from quintain.loop.settings import EvalSettings

SETUP = "CREATE TABLE t (x); INSERT INTO t VALUES"


async def found(verifier, *answers):
    tasks = [
        {"id": f"t{n}", "prompt": "?", "answer": answer, "split": ("train", "eval")[n % 2]}
        for n, answer in enumerate(answers)
    ]
    return await golds_are_sound(SimpleNamespace(environment=q.Environment(tasks, verifier)))


def sql(*rows):
    return {"query": "SELECT x FROM t", "databases": [{"setup": f"{SETUP} {row}"} for row in rows]}


async def test_golds():
    assert (await found(q.Sql(), sql("(1)", "(2)"), sql("(3)", "(4)"))).level == "ok"
    bad = await found(q.Sql(), sql("(1)", "(2)"), sql("(1)", "(1)"))
    assert (bad.level, "constants" in bad.message, "t1" in bad.message) == ("error", True, True)
    assert (await found(lambda text: True, None)).message.endswith("no golds to check")
    assert (await found(q.all_of(q.Calls(), q.Answer()), {"calls": []})).level == "error"


CAP = "def f(n):\n    if n > 9:\n        return 9\n    return n\n"


@pytest.mark.parametrize(("inputs", "level"), [((5,), "error"), ((5, 12), "ok")])
async def test_hidden_cases_that_leave_lines_of_the_solution_out(monkeypatch, inputs, level):
    # All but the gold is left out: what exploits do is not asked here.
    gold = partial(preflight.aaudit, sources=["gold"], probes=False)
    monkeypatch.setattr(preflight, "aaudit", gold)
    cases = [{"input": [n], "expected": min(n, 9)} for n in inputs]
    task = {
        "id": "cap",
        "prompt": "Cap n at 9.",
        "answer": {"entry_point": "f", "cases": cases},
        "split": "train",
    }
    events = []

    async def event(kind, data):
        events.append((kind, data))

    flight = SimpleNamespace(
        environment=q.Environment([task], q.Tests(), oracle=lambda _: [f"```python\n{CAP}```"]),
        evaluation=EvalSettings(audit_tasks=1),
        config=SimpleNamespace(seed=0),
        store=SimpleNamespace(event=event),
        host={},
    )
    found = await verifier_withstands_attacks(flight)
    assert found.level == level, found.message
    assert ("runs 75% of its reference" in found.message) is (level == "error")
    assert events[0][1]["suites"][0]["missing"] == ([3] if level == "error" else [])
