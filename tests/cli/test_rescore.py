"""`quintain rescore` on a run that the command line made."""

from __future__ import annotations

MORE = """

async def odd(text, answer):
    return int(answer) % 2 == 1
"""


def test_rescore(quintain, here):
    (here / "adding.py").write_text((here / "adding.py").read_text() + MORE)
    quintain("eval", "adding.py", "--policy", "adding.py:parrot", "--out", "runs/old")
    called = quintain("rescore", "runs/old", "--verifier", "adding.py:odd", "--out", "runs/new")
    assert called.code == 0, called.err
    assert "20 judged again by odd, 6 changed: 6 failed → solved" in called.out
    assert "stored in runs/new" in called.out
    # Never overwritten; resumed, it is done already.
    again = ("rescore", "runs/old", "--verifier", "adding.py:odd", "--out", "runs/new")
    assert quintain(*again).code == 2
    told = quintain(*again, "--resume", "--json").json
    assert (told["judged"], told["changed"], told["counts"]) == (20, 6, {"failed → solved": 6})
    assert told["changes"][0]["before"]["verifier"]
    # Without a verifier: the environment's own, as it is today.
    told = quintain("rescore", "runs/old", "--json").json
    assert (told["judged"], told["changed"]) == (20, 0)
    assert quintain("report", "runs/new").code == 0


def test_rescore_says_what_is_wrong(quintain, here):
    assert "holds no run" in quintain("rescore", "runs/none", "--verifier", "answer").err
    quintain("eval", "adding.py", "--policy", "adding.py:parrot", "--out", "runs/old")
    called = quintain("rescore", "runs/old", "--verifier", "nothing")
    assert (called.code, "no verifier named" in called.err) == (2, True)
    called = quintain("rescore", "runs/old", "--resume")
    assert "--resume needs --out" in called.err
    called = quintain("rescore", "runs/old", "--purpose", "train")
    assert "it holds: eval" in called.err
