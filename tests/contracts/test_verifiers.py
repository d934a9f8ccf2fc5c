"""Every built-in verifier keeps the contract."""

import pytest

from quintain.task import SandboxSpec, Task
from quintain.testing import check_verifier
from quintain.verdict import Verdict
from quintain.verifiers.answer import Answer
from quintain.verifiers.function import verifier
from quintain.verifiers.tests import Tests


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
