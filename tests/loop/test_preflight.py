"""Single checks before training, on what they look at."""

from types import SimpleNamespace

import quintain as q
from quintain.loop.preflight import golds_are_sound

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
