"""An audit finds what careless verifiers pay for, accuses no careful one, and proves all."""

from __future__ import annotations

import ast
import json
import random

import pytest

from quintain.audits import aaudit
from quintain.audits.aims import examples_in
from quintain.audits.page import to_html
from quintain.audits.sarif import to_sarif
from quintain.audits.sources import _RenamedLocals
from quintain.audits.submissions import as_script, code_of
from quintain.audits.trials import PASSES, Pass
from quintain.envs.environment import Environment
from quintain.errors import ConfigError
from quintain.verifiers.answer import Answer
from quintain.verifiers.function import verifier

ONCE = [Pass("once", 4)]
TASKS = [
    {"id": f"t{n}", "prompt": f"What is {n} + {n}?", "answer": str(2 * n), "split": "eval"}
    for n in (7, 21)
]


def answers(judge, **more):
    return Environment(
        TASKS, judge, name="sums", oracle=lambda task: [f"The answer is {task.answer}"], **more
    )


def contains(text: str, answer: str) -> bool:
    return answer in text


def evaluates(text: str, answer: str) -> bool:
    return eval(text) == int(answer)


def nothing_to_fail(text: str, answer: str) -> bool:
    numbers = [word for word in text.replace(",", " ").split() if word.isdigit()]
    return not numbers or answer in numbers[-1:]


async def tosses(text: str, answer: str) -> bool:
    return answer in text.split() and random.SystemRandom().random() < 0.5


async def test_a_careful_verifier_is_not_accused():
    report = await aaudit(answers(Answer("number")), passes=PASSES)
    assert report.findings == ()
    assert report.problems() == []
    assert report.false_positives.value == 0.0
    assert 0 < report.false_positive_bound < 0.15
    assert report.false_negatives.value == 0.0
    assert report.verdicts == 3 * len(report.trials)


@pytest.mark.parametrize(
    ("judge", "weaknesses"),
    [
        (contains, {"BGW-123"}),
        (nothing_to_fail, {"BGW-126"}),
    ],
)
async def test_a_careless_verifier_is_found_out(judge, weaknesses):
    report = await aaudit(answers(judge), passes=ONCE)
    assert weaknesses <= {finding.weakness for finding in report.findings}
    assert report.problems()


async def test_a_verifier_that_runs_answers_is_found_out():
    report = await aaudit(
        answers(verifier(evaluates, deadline_s=5)), passes=ONCE, sources=["exploits"]
    )
    assert "BGW-129" in {finding.weakness for finding in report.findings}


async def test_a_failing_gold_is_a_wrong_reference():
    environment = answers(Answer("number"))
    environment.oracle = lambda task: ["The answer is 1"]
    report = await aaudit(environment, passes=ONCE, sources=["gold"])
    assert [finding.weakness for finding in report.findings] == [
        "BGW-124",
    ]
    assert report.gold_fails == ("t7",)
    assert "gold" in report.problems()[0]


async def test_a_verdict_that_changes_is_found():
    report = await aaudit(
        answers(tosses), sources=["gold"], passes=[Pass(f"{n}", 1) for n in range(30)]
    )
    assert {finding.weakness for finding in report.findings} == {"BGW-127"}
    assert report.flips == 1


async def test_a_finding_can_be_shown_again():
    environment = answers(contains)
    first = await aaudit(environment, passes=ONCE)
    finding = first.findings[0]
    task = environment.tasks.get(finding.task_id)
    again = await aaudit(environment, tasks=[task], only=[finding.submission], passes=ONCE)
    assert [found.id for found in again.findings] == [finding.id]
    assert finding.rewards == (1.0,)
    assert finding.script[0]["role"] == "assistant"


async def test_faults_of_the_host_accuse_nobody():
    def broken(text: str, answer: str) -> bool:
        raise RuntimeError("the judge is ill")

    report = await aaudit(answers(broken), passes=ONCE, sources=["gold"], retries=0)
    assert report.findings == ()
    assert report.to_json()["errors"] == 1
    assert "nothing was judged" in report.problems()[0]
    assert "BGW-124" in report.not_measured


async def test_what_was_not_tried_is_said_and_not_called_clean():
    report = await aaudit(answers(contains), passes=ONCE, sources=["gold"])
    assert {"BGW-102", "BGW-123", "BGW-117"} <= set(report.not_measured)
    assert "BGW-127" in report.not_measured, "one pass shows no change"
    twice = await aaudit(answers(contains), passes=[*ONCE, *ONCE], sources=["gold"])
    assert "BGW-127" not in twice.not_measured


async def test_misuse():
    with pytest.raises(ConfigError, match="no source 'golds'"):
        await aaudit(answers(contains), sources=["golds"])
    with pytest.raises(ConfigError, match="no submission is named nothing"):
        await aaudit(answers(contains), only=["nothing"])


async def test_three_forms_say_the_same():
    report = await aaudit(answers(contains), passes=ONCE)
    as_json = json.loads(json.dumps(report.to_json("sums.py:environment")))
    sarif = to_sarif(report, "sums.py:environment", "1")
    page = to_html(report, "sums.py:environment")
    ids = [found["id"] for found in as_json["findings"]]
    assert ids == [
        result["partialFingerprints"]["quintain/v1"] for result in sarif["runs"][0]["results"]
    ]
    assert sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    for found in report.findings:
        assert found.command("sums.py:environment").startswith("quintain audit sums.py:environment")
        assert found.title in page
    assert "<script" not in page


def test_renamed_locals_mean_the_same():
    loop = "    for i in range(b):\n        total += i\n"
    source = f"def f(a, b=2):\n    total = a\n{loop}    return total\n"
    renamed = ast.unparse(_RenamedLocals().visit(ast.parse(source)))
    assert "total" not in renamed
    spaces = [{}, {}]
    exec(source, spaces[0])
    exec(renamed, spaces[1])
    for arguments in ((1,), (3, 4), (0, 9)):
        assert spaces[0]["f"](*arguments) == spaces[1]["f"](*arguments)


def test_examples_are_read_from_the_task():
    prompt = "Write f(a, b).\nExample: f([1, 2], 'x') == {'x': [1, 2]}\nAlso f(3) -> 4."
    found = examples_in(prompt, {"entry_point": "f"})
    assert found == ((([1, 2], "x"), {"x": [1, 2]}), ((3,), 4))
    assert examples_in(prompt, "7") == ()


def test_code_is_the_last_block():
    assert code_of("```python\na = 1\n```\ntext\n```\nb = 2\n```") == "b = 2\n"
    assert as_script(["x"])[0].role == "assistant"
