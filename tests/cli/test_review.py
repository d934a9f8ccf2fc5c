"""`quintain review` by files, as a script uses it."""

from __future__ import annotations

import json


def test_review(quintain, here):
    quintain("eval", "adding.py", "--policy", "adding.py:parrot", "--out", "runs/a")
    called = quintain("review", "runs/a", "--passes", "3", "--fails", "4", "--export", "todo.jsonl")
    assert called.code == 0, called.err
    assert "7 without a label written" in called.err
    rows = [json.loads(line) for line in (here / "todo.jsonl").read_text().splitlines()]
    for row in rows:
        row["label"] = "accept" if eval(row["key"][2]) == 3 else "reject"
    (here / "done.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = quintain("review", "runs/a", "--import", "done.jsonl", "--reviewer", "me", "--json").json
    assert (told["labelled"], told["to_label"]) == (7, 0)
    assert told["rates"]["false_positive"]["value"] == 0.0
    assert 0 < told["rates"]["false_positive"]["high"] < 1
    called = quintain("review", "runs/a")
    assert "7 of 7 labelled" in called.out
    assert "false positives 0.000" in called.out
    assert quintain("report", "runs/a").code == 0
    assert "review.rates" in (here / "runs/a/report.html").read_text()


def test_review_says_what_is_wrong(quintain, here):
    assert "holds no run" in quintain("review", "runs/none").err
    quintain("eval", "adding.py", "--policy", "adding.py:parrot", "--out", "runs/a")
    assert quintain("review", "runs/a", "--import", "nothing.jsonl").code == 2
    assert "it holds: eval" in quintain("review", "runs/a", "--purpose", "x", "--fresh").err
