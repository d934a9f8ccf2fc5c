"""Rules of form and likeness: what they see, and that they say what they are."""

import pytest

from quintain.errors import ConfigError, TaskError
from quintain.task import Task
from quintain.verdict import Outcome
from quintain.verifiers.rules import Rules, Similarity, char_f1, rouge_l, word_f1


async def test_rules(bench):
    rules = Rules(must=[r"^\d+\.", "because"], must_not=["(?i)as an AI"], min_chars=5, max_chars=90)
    good = await bench.judge(rules, "1. It is, because it is.")
    assert (good.outcome, good.kind, len(good.checks)) == (Outcome.SOLVED, "heuristic", 4)
    for wrong in (
        "",
        "1. because " + "x" * 90,
        "It is, because it is.",
        "1. It is.",
        "1. because, As an AI, I say so.",
    ):
        assert (await bench.judge(rules, wrong)).outcome is Outcome.FAILED


async def test_a_text_made_to_be_slow_fails(bench):
    rules = Rules(must=["(a+)+b"], cpu_s=0.2)
    verdict = await bench.judge(rules, "a" * 60)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.checks[-1].name == "budget"


async def test_repetition(bench):
    rules = Rules(max_repetition=0.2)
    assert not (await bench.judge(rules, "so it is and " * 50)).passed
    assert (await bench.judge(rules, " ".join(f"word{n}" for n in range(50)))).passed


REFERENCE = "A leap year has 366 days and comes every four years."


async def test_similarity(bench):
    verifier = Similarity(threshold=0.6)
    like = await bench.judge(verifier, "A leap year has 366 days, every four years.", REFERENCE)
    assert (like.outcome, like.kind) == (Outcome.SOLVED, "heuristic")
    assert like.score == pytest.approx(2 * 9 / (9 + 11))
    for wrong in ("", "Bananas.", "days " * 500, REFERENCE[:11]):
        assert (await bench.judge(verifier, wrong, REFERENCE)).outcome is Outcome.FAILED
    assert (await bench.judge(verifier, REFERENCE, ["Something else.", REFERENCE])).passed
    graded = await bench.judge(Similarity("rouge_l", threshold=None), "A leap year", REFERENCE)
    assert 0 < graded.reward < 1
    assert not graded.passed


async def test_an_echo_of_the_prompt_gets_nothing(bench):
    prompt = "How many days has a leap year and how often does it come?"
    task = Task(id="t", prompt=prompt, answer="A leap year has 366 days and does come often.")
    verifier = Similarity(threshold=0.3)
    assert word_f1(prompt, task.answer) > 0.3
    echo = await bench.judge(verifier, prompt, task=task)
    assert (echo.reward, "echo" in echo.explanation) == (0.0, True)


def test_measures():
    for measure in (word_f1, rouge_l, char_f1):
        assert measure("the same text", "The SAME text!") == 1.0
        assert measure("", "words") == measure("abc", "xyz") == 0.0
    assert word_f1("b a", "a b") == 1.0 > rouge_l("b a", "a b") == 0.5
    assert rouge_l("x " * 6000, "x") == 0.0


def test_what_is_refused():
    for make in (
        lambda: Rules(must=["("]),
        lambda: Rules(min_chars=5, max_chars=2),
        lambda: Similarity("cosine"),
        lambda: Similarity(threshold=0.0),
    ):
        with pytest.raises(ConfigError):
            make()
    for answer in (None, "", "...", [], ["ok", 3]):
        with pytest.raises(TaskError):
            Similarity().check_gold(Task(id="t", prompt="?", answer=answer))
