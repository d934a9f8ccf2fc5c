"""`quintain audit`: what it prints, writes and exits with."""

from __future__ import annotations

import json

CARELESS = """
import quintain as q

def judge(text, answer):
    return answer in text

environment = q.Environment(
    name="careless",
    tasks=[{"id": "a", "prompt": "6 * 7?", "answer": "42", "split": "eval"}],
    verifier=judge,
    oracle=lambda task: [f"The answer is {task.answer}"],
)
"""


def test_a_careless_verifier(quintain, here):
    (here / "careless_one.py").write_text(CARELESS)
    called = quintain("audit", "careless_one.py", "--html", "a.html", "--sarif", "a.sarif")
    assert called.code == 1
    assert "BGW-123" in called.out
    assert "against training: wrong submissions pass" in called.out
    assert "quintain audit careless_one.py --task a --only" in called.out
    assert json.loads((here / "a.sarif").read_text())["version"] == "2.1.0"
    assert "Audit of careless" in (here / "a.html").read_text()
    again = quintain("audit", "careless_one.py", "--task", "a", "--only", "answer/all-numbers")
    assert again.code == 1


def test_a_careful_environment_and_its_json(quintain):
    called = quintain("audit", "arithmetic", "--json")
    assert called.code == 0, called.err
    assert called.json["problems"] == []
    assert called.json["false_positives"]["value"] == 0
    assert called.json["submissions"] > 60


def test_a_verifier_with_tasks(quintain, here):
    (here / "t.jsonl").write_text('{"prompt": "6 * 7?", "answer": "42", "split": "eval"}\n')
    called = quintain("audit", "answer", "--tasks", "t.jsonl", "--json")
    assert called.code == 0, called.err
    assert called.json["verifier"] == "answer"


def test_misuse(quintain, here):
    called = quintain("audit", "answer")
    assert called.code == 2
    called = quintain("audit", "arithmetic", "--source", "nowhere")
    assert called.code == 2
    assert "no source 'nowhere'" in called.err
    called = quintain("audit", "arithmetic", "--only", "nothing")
    assert "no submission is named nothing" in called.err
