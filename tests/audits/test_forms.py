"""Each form of submission has exploits: a careful verifier resists, a careless one falls."""

from __future__ import annotations

import json
import sqlite3

import pytest

import judges
import quintain as q
from quintain.audits import aaudit
from quintain.audits.aims import aim_of, form_of, may_be_right
from quintain.audits.trials import Pass
from quintain.envs import terminal
from quintain.envs.environment import Environment
from quintain.verifiers.calls import Calls
from quintain.verifiers.judge import Judge
from quintain.verifiers.sql import Sql

ONCE = [Pass("once", 4)]
TABLE = "CREATE TABLE people (name TEXT, age INTEGER);"
SQL = {
    "id": "a",
    "prompt": "The names of the people over thirty.",
    "split": "eval",
    "answer": {
        "query": "SELECT name FROM people WHERE age > 30",
        "databases": [
            {"setup": TABLE + "INSERT INTO people VALUES ('ann', 31), ('bob', 20), ('cay', 44);"},
            {"setup": TABLE + "INSERT INTO people VALUES ('dan', 62), ('eve', 9), ('fay', 35);"},
        ],
    },
}
CALLS = {
    "id": "a",
    "prompt": "Book one seat to Paris and pay.",
    "split": "eval",
    "answer": {
        "calls": [
            {"name": "book", "arguments": {"seats": 1, "city": "Paris"}},
            {"name": "pay", "arguments": {"amount": 40, "tip": False}},
        ]
    },
}


def book(seats: int, city: str) -> str:
    """Books."""
    return "booked"


def pay(amount: int, tip: bool) -> str:
    """Pays."""
    return "paid"


def weaknesses(report):
    return {finding.weakness for finding in report.findings}


async def test_queries():
    report = await aaudit(Environment([SQL], Sql(cpu_s=0.3), name="people"), passes=ONCE)
    assert report.form == "sql"
    assert report.findings == ()
    assert report.problems() == []
    assert {"constant result", "hidden names", "exhaustion"} <= set(report.kinds)


async def test_careless_queries():
    async def one_database(text, answer):
        query = text.partition("```sql\n")[2].partition("\n```")[0]
        rows = []
        for sql in (query, answer["query"]):
            base = sqlite3.connect(":memory:")
            base.executescript(answer["databases"][0]["setup"])
            try:
                rows.append(set(base.execute(sql).fetchmany(100)))
            except (sqlite3.Error, sqlite3.Warning):
                rows.append(None)
        return rows[0] == rows[1]

    report = await aaudit(
        Environment([SQL], one_database, name="people"),
        passes=ONCE,
        only=["gold", "sql/rows-written-down", "sql/every-row-twice", "sql/one"],
    )
    assert weaknesses(report) == {"BGW-123", "BGW-136"}


@pytest.mark.parametrize("source", ["trajectory", "text"])
async def test_calls(source):
    tools = [book, pay] if source == "trajectory" else []
    environment = Environment([CALLS], Calls(source=source), name="calls", tools=tools)
    report = await aaudit(environment, passes=ONCE)
    assert report.form == "calls"
    assert report.findings == ()
    assert report.problems() == []
    assert {"type coercion", "look-alike names", "duplicated calls"} <= set(report.kinds)
    assert "mimicked call" in report.kinds


async def test_careless_calls():
    async def equal_in_python(trajectory, answer):
        made = [call for step in trajectory.steps for call in step.action.message.tool_calls]
        wanted = [(call["name"], call["arguments"]) for call in answer["calls"]]
        return all(want in [(call.name, call.arguments) for call in made] for want in wanted)

    environment = Environment([CALLS], equal_in_python, name="calls", tools=[book, pay])
    report = await aaudit(environment, passes=ONCE)
    found = {finding.submission for finding in report.findings}
    assert {"calls/true-for-one", "calls/every-call-twice", "calls/another-function"} <= found
    assert not {"calls/upper-case-name", "calls/tells-of-the-call"} & found


def test_changed_calls_that_the_answer_accepts():
    answer = {
        "calls": [{"name": "f", "alternatives": {"a": [1, True]}, "optional": ["a"]}],
    }
    for arguments, right in (({"a": True}, True), ({}, True), ({"a": "1"}, False)):
        made = json.dumps({"text": "", "calls": [{"name": "f", "arguments": arguments}]})
        assert may_be_right(answer, made) is right


async def test_judges():
    tasks = [{"id": "a", "prompt": "Which number?", "answer": "forty-two: 42", "split": "eval"}]
    careful = Judge(judges.judge_of(judges.honest), "Says forty-two.", canary_every=0)
    report = await aaudit(Environment(tasks, careful, name="judged"), passes=ONCE)
    assert report.form == "judge"
    assert report.findings == ()
    gullible = Judge(judges.judge_of(judges.gullible), "Says it.", canary_every=0, echo=False)
    report = await aaudit(Environment(tasks, gullible, name="judged"), passes=ONCE)
    assert {"BGW-112"} <= weaknesses(report)


async def test_a_terminal():
    environment = terminal.environment()
    task = environment.tasks.get(next(iter(environment.tasks.split("eval"))).id)
    assert aim_of(environment, task).shell == ("shell", "command")
    report = await aaudit(
        environment,
        tasks=[task],
        passes=ONCE,
        only=["gold", "terminal/tools-on-the-path", "terminal/link-to-stdin", "terminal/variables"],
    )
    assert report.findings == ()
    assert len(report.trials) == 4


async def test_a_careless_terminal():
    async def exists(sandbox):
        return (await sandbox.exec(["sh", "-c", "test -e answer.txt && diff x x"])).ok

    task = {
        "id": "a",
        "prompt": "Count.",
        "answer": {"files": {"answer.txt": "3"}},
        "files": {"x": "1\n"},
    }
    environment = Environment(
        [task | {"split": "eval"}],
        exists,
        name="careless",
        tools=terminal.TOOLS,
        sandbox=terminal.SPEC,
        oracle=lambda task: ["Done."],
    )
    only = ["empty", "terminal/empty-output", "terminal/tests-deleted"]
    report = await aaudit(environment, passes=ONCE, only=only)
    assert [finding.submission for finding in report.findings] == ["terminal/empty-output"]


def test_forms_by_what_a_task_looks_like():
    formal, heuristic = q.verifier(lambda text: True), q.verifier(lambda text: True)
    environment = Environment([SQL], formal, name="x")
    assert form_of(environment, {"cases": [], "entry_point": "f"}) == "function"
    assert form_of(environment, {"cases": []}) == "program"
    assert form_of(environment, {"no_calls": True}) == "calls"
    assert form_of(environment, "42") == "answer"
    assert form_of(environment, True) == "other"
    heuristic.kind = "heuristic"
    assert form_of(Environment([SQL], heuristic, name="x"), "42") == "judge"
