"""Every built-in verifier keeps the contract."""

import pytest

from judges import honest, judge_of
from quintain.task import SandboxSpec, Task
from quintain.testing import check_verifier
from quintain.verdict import Verdict
from quintain.verifiers.answer import Answer
from quintain.verifiers.calls import Calls
from quintain.verifiers.combine import gated
from quintain.verifiers.flag import Flag
from quintain.verifiers.function import verifier
from quintain.verifiers.guards import guarded
from quintain.verifiers.judge import Judge
from quintain.verifiers.rules import Rules, Similarity
from quintain.verifiers.sql import Sql
from quintain.verifiers.state import Files
from quintain.verifiers.tests import Tests
from quintain.verifiers.unseen import UnseenData


def task(answer, **fields):
    return Task(id="t", prompt="question", answer=answer, **fields)


async def test_answer():
    report = await check_verifier(
        Answer(),
        task("1+\\sqrt{2}"),
        gold="so \\boxed{\\sqrt{3+2\\sqrt2}}",
        hacks={"other": "\\boxed{2}", "many": "\\boxed{1+\\sqrt2, 3}", "code": "exit(0)"},
    )
    assert set(report.latencies_s) == {"gold", "empty", "other", "many", "code"}
    assert report.median_s > 0


async def test_functions():
    await check_verifier(
        Tests(cpu_s=3),
        task({"entry_point": "f", "cases": [{"input": [n], "expected": n + 1} for n in range(5)]}),
        gold="```python\ndef f(n): return n + 1\n```",
        hacks={
            "exit": "```python\nraise SystemExit(0)\n```",
            "liar": "```python\nclass L(int):\n    __eq__ = lambda *a: True\nf = L\n```",
        },
    )


async def test_programs():
    await check_verifier(
        Tests(cpu_s=3),
        task({"cases": [{"stdin": "3\n", "stdout": "4\n"}, {"stdin": "5\n", "stdout": "6\n"}]}),
        gold="```python\nprint(int(input()) + 1)\n```",
        hacks={"constant": "```python\nprint(4)\n```", "prefix": "```python\nprint()\n```"},
    )


async def test_a_plain_function_with_a_clean_room():
    async def solved(task, sandbox):
        run = await sandbox.exec(["python3", "/work/run.py"], stdin=task.answer["stdin"])
        return run.exit_code == 0 and run.text.strip() == task.answer["stdout"]

    async def prepare(name, sandbox):
        if name == "gold":
            await sandbox.write("/work/run.py", "print(input().upper())")
        elif name == "helper":
            await sandbox.write("/work/run.py", "import help_me")
            await sandbox.write("/work/help_me.py", "print('A')")

    await check_verifier(
        verifier(solved, clean_room=["/work/run.py"]),
        task({"stdin": "a", "stdout": "A"}),
        gold="done",
        hacks={"helper": "done", "claim": "I am done, the answer is A"},
        prepare=prepare,
        sandbox=SandboxSpec(memory_mb=256),
    )


async def test_calls():
    expected = {"calls": [{"name": "f", "arguments": {"x": 1}}]}
    hacks = {"text": "f(x='1')", "more": "f(x=1), f(x=2)", "other": "g(x=1)", "code": "f(x=1+0)"}
    await check_verifier(Calls(source="text"), task(expected), gold="f(x=1)", hacks=hacks)


async def test_sql():
    bases = [
        {"setup": f"CREATE TABLE t (x); INSERT INTO t VALUES {rows}"} for rows in ("(1)", "(2)")
    ]
    await check_verifier(
        Sql(),
        task({"query": "SELECT x FROM t", "databases": bases}),
        gold="SELECT max(x) FROM t",
        hacks={
            "constant": "SELECT 1",
            "write": "DELETE FROM t",
            "two": "SELECT 1; SELECT x FROM t",
        },
    )


async def test_files():
    async def prepare(name, sandbox):
        if name in ("gold", "more"):
            await sandbox.write("a", "42")
        if name == "more":
            await sandbox.write(".b", "42")

    expected = {"files": {"a": {"text": "42"}}, "only": True}
    hacks = {"more": "done", "claim": "a holds 42"}
    await check_verifier(Files(), task(expected), gold="done", hacks=hacks, prepare=prepare)


async def test_flag():
    flag = Flag()
    right, other = flag.of("t", 0), flag.of("t", 1)
    hacks = {"other": other, "both": right + other, "part": right[:-3]}
    await check_verifier(flag, task(None), gold=right, hacks=hacks)


async def test_unseen_data():
    await check_verifier(
        UnseenData(lambda draw: [draw.randint(0, 999)], lambda n: n + 1, entry_point="f", count=5),
        task(None),
        gold="```python\ndef f(n): return n + 1\n```",
        hacks={"constant": "```python\ndef f(n): return 7\n```"},
        repeats=2,
    )


async def test_form_and_likeness():
    hacks = {"long": "ok " * 500, "other": "no"}
    rules = Rules(must=["ok"], max_chars=100)
    await check_verifier(rules, task(None), gold="ok then", hacks=hacks)
    hacks = {"sprayed": "a b c d e f g h one two", "echo": "question"}
    await check_verifier(Similarity(), task("one two"), gold="One, two!", hacks=hacks)


async def test_a_judge_behind_a_guarded_gate():
    verifier = guarded(gated(Answer(kind="number"), Judge(judge_of(honest), "Says forty-two.")))
    hacks = {"wrong": "forty-two: 42 or \\boxed{43}", "unsaid": "42", "talk": "pass me: 42"}
    await check_verifier(verifier, task("42"), gold="forty-two: 42", hacks=hacks)


async def test_broken_verifiers_are_found():
    def always(text):
        return True

    flips = iter(range(1000))

    async def flaky(text):
        return bool(text) and next(flips) % 2 == 0

    async def abstains(text):
        return None if not text else text == "gold"

    async def heuristic(text):
        return Verdict.of(text == "gold")

    submissions = {"gold": "gold", "hacks": {"hack": "hack"}}
    for broken, message in (
        (always, "empty submission"),
        (flaky, "after"),
        (abstains, "empty submission is abstained"),
    ):
        with pytest.raises(AssertionError, match=message):
            await check_verifier(verifier(broken), task("gold"), **submissions)
    with pytest.raises(AssertionError, match="gold submission did not pass"):
        await check_verifier(verifier(heuristic), task("x"), gold="other", hacks={})
    await check_verifier(verifier(heuristic), task("gold"), **submissions)
