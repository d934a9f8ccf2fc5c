"""The answer verifier on real pairs, on its own rules, and on hostile text."""

import json
import time

import pytest

from quintain.errors import ConfigError, TaskError
from quintain.task import Task
from quintain.verdict import Outcome
from quintain.verifiers.answer import Answer
from quintain.verifiers.extract import extract, last_box


def pairs(shared_data):
    path = shared_data / "verifiers" / "math_pairs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_shared_pairs(bench, shared_data):
    pytest.importorskip("mpmath")
    wrong = []
    for pair in pairs(shared_data):
        if pair["convention_dependent"]:
            continue
        verdict = await bench.judge(Answer(), pair["answer"], pair["gold"])
        if verdict.passed != pair["correct"]:
            wrong.append((pair["gold"], pair["answer"], pair["correct"], verdict.explanation))
    assert not wrong


async def test_golds_of_the_shared_pairs_equal_themselves(bench, shared_data):
    for pair in pairs(shared_data):
        Answer().check_gold(Task(id="t", prompt="q", answer=pair["gold"]))


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("42", "42"),
        ("42", "**42**"),
        ("42", "So it is \\boxed{41}. No, wait: \\boxed{42}."),
        ("42", "\\boxed{\\text{42}}"),
        ("42", "\\boxed{ 42 \\text{ apples} }"),
        ("-3", "−3"),
        ("1/2", "½"),
        ("2.5", "2\\frac{1}{2}"),
        ("\\sqrt{3+2\\sqrt2}", "1+\\sqrt{2}"),
        ("\\sqrt{12}", "2\\sqrt3"),
        ("2^{1/3}", "\\sqrt[3]{2}"),
        ("\\frac{1}{\\sqrt{2}-1}", "1+\\sqrt{2}"),
        ("x^2-1", "(x-1)(x+1)"),
        ("\\sin 2x", "2\\sin x\\cos x"),
        ("\\cos(60^\\circ)", "1/2"),
        ("\\log_2 8", "3"),
        ("e^{2\\ln 3}", "9"),
        ("\\binom{10}{3}", "120"),
        ("\\{1,2,3\\}", "3, 1, 2"),
        ("(1,2)", "(1, 2)"),
        ("[0,1)", "0 \\le x < 1"),
        ("(-\\infty,2]\\cup[3,\\infty)", "[3,\\infty) \\cup (-\\infty,2]"),
        ("y=2x+1", "2x - y + 1 = 0"),
        ("f(x)=x^2", "f(t)=t^2"),
        ("f(x)=x^2", "x^2"),
        ("\\pm 3", "3 or -3"),
        ("7:32", "14:64"),
        ("90^\\circ", "90"),
        ("0.25", "25%"),
        ("5\\text{ cm}", "5 cm"),
        ("1,234,567", "1234567"),
        ("Paris", "paris"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)"),
        ("12 \\text{ cm}^2", "12 cm^2"),
        ("\\text{no solution}", "No solution."),
        ("0.\\overline{3}", "1/3"),
        ("1.2\\overline{45}", "137/110"),
        ("6e5", "600000"),
        ("1.5\\times 10^{-3}", "0.0015"),
        ("\\{x : x > 3\\}", "(3,\\infty)"),
        ("(-\\infty,0)\\cup(0,\\infty)", "x \\ne 0"),
        ("33\\frac{1}{3}\\%", "\\frac13"),
        ("3:4", "3 : 4"),
        ("2516_8", "2516_{8}"),
        ("\\mathbb{R}", "(-\\infty,\\infty)"),
        ("a=1,b=2", "(a,b)=(1,2)"),
        ("n!", "n(n-1)!"),
        ("\\frac{n(n+1)}{2}", "\\binom{n+1}{2}"),
        ("4x³", "4x^3"),
    ],
)
async def test_equal(bench, gold, answer):
    verdict = await bench.judge(Answer(), answer, gold)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("42", ""),
        ("42", "   \n"),
        ("42", "42 42 42"),
        ("42", "I refuse. 42 42 42"),
        ("42", "\\boxed{}"),
        ("42", "\\boxed{42"),
        ("42", "\\boxed{41, 42}"),
        ("42", "\\boxed{41}, \\boxed{42}"),
        ("42", "41 or 42"),
        ("42", "\\boxed{42 \\text{ or } 43}"),
        ("42", "\\boxed{[1, 100]}"),
        ("42", "x"),
        ("42", "4\\,2\\,"),
        ("42", "nan"),
        ("1", "True"),
        ("\\sqrt{2}", "1.41"),
        ("\\pi", "3.14"),
        ("\\pi", "22/7"),
        ("x", "|x|"),
        ("x", "\\sqrt{x^2}"),
        ("\\sin x", "x"),
        ("0", "e^{-400}"),
        ("0", "10^{-300}"),
        ("1", "1+10^{-200}"),
        ("\\sqrt{2}", "\\sqrt{2}+10^{-90}"),
        ("e^{\\pi\\sqrt{163}}", "262537412640768744"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "\\{1,2\\}"),
        ("(1,2)", "[1,2]"),
        ("[1,2]", "[1,2)"),
        ("x=5, p=2", "2, 5"),
        ("x<3", "x\\le 3"),
        ("y=2x+1", "y=2x"),
        ("5\\text{ cm}", "5\\text{ m}"),
        ("0.5", "0.5\\%"),
        ("red", "der"),
        ("\\{1,2\\}", "\\{1,2,3\\}"),
        ("f(x)=x^2", "f(x)=x^3"),
        ("\\frac{1}{2}", "\\frac{1}{0}"),
        ("B", "A"),
        ("2.5", "2.4"),
        ("1/3", "0.3"),
        ("2", "12"),
        ("\\infty", "-\\infty"),
        ("[0,1]", "{0,1}"),
        ("2.3", "(2,3)"),
        ("2516_8", "2516_7"),
        ("x \\ne 0", "x \\ne 1"),
        ("1\\text{ km}", "1\\text{ m}"),
        ("12\\text{ cm}", "12\\text{ cm}^2"),
        ("0.\\overline{3}", "0.3"),
        ("a", "b"),
        ("a", "A"),
    ],
)
async def test_not_equal(bench, gold, answer):
    verdict = await bench.judge(Answer(), answer, gold)
    assert verdict.outcome is Outcome.FAILED, verdict


EQUAL_BOTH_WAYS = [
    ("1/2", "0.5"),
    ("\\sqrt{8}", "2\\sqrt{2}"),
    ("x<3", "(-\\infty,3)"),
    ("\\{1,2\\}", "2,1"),
    ("x=2", "2"),
    ("2x+4y-3=0", "y=-\\frac12x+\\frac34"),
    ("1+\\sqrt2", "\\sqrt{3+2\\sqrt2}"),
    ("\\pm 2", "-2, 2"),
    ("7:32", "14:64"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL_BOTH_WAYS)
async def test_equality_is_symmetric(bench, one, other):
    assert (await bench.judge(Answer(), one, other)).passed
    assert (await bench.judge(Answer(), other, one)).passed


HOSTILE = [
    "9^{9^{9^9}}",
    "2^{2^{2^{49}}}",
    "9" * 100_000,
    "(" * 200 + "1" + ")" * 200,
    "\\sqrt{" * 300 + "2" + "}" * 300,
    "\\frac{1}{" * 50 + "2" + "}" * 50,
    "\\binom{10000000}{5000000}",
    "(10^7)!",
    "(" * 30 + "a+b+c+d" + ")^{32}" * 30,
    "+".join(f"\\sqrt{{{n}}}" for n in range(1_000_003, 1_000_400)),
    "*".join("(x+1/7)" for _ in range(400)),
    "9^{9999}+" * 300 + "1",
    "\\sin(10^{1000000})",
    "((((9!)!)!)!)",
    "\\left(" * 100,
    "{" * 3000,
    "," * 3000,
    "1," * 1500,
    "\\pm" * 500 + "1",
    "x" * 3000,
    "^" * 3000,
    "e^{e^{e^{e^{e^{e}}}}}",
    "\\gcd(10^{999},10^{998})",
    "\\tan(\\tan(\\tan(10^{900})))",
    "0." + "3" * 3500,
    "().__class__.__base__.__subclasses__()",
    "__import__('os').system('touch /tmp/quintain-answer')",
]


@pytest.mark.parametrize("gold", ["42", "1+\\sqrt{2}"])
@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_answers_fail_and_cost_little(bench, gold, answer):
    verifier = Answer(cpu_s=0.5)
    began = time.process_time()
    verdict = await bench.judge(verifier, f"\\boxed{{{answer}}}", gold)
    assert verdict.outcome is Outcome.FAILED, verdict
    # CPU of this process, not time: nothing heavy may run inline.
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 300_000,
        "\\[" * 500_000,
        "$" * 1_000_001,
        "answer" + " " * 1_000_000,
        "\\boxed{1}" + "\\text{ " + " " * 50_000 + "\\boxed{2}",
        "}" * 1_000_000,
        "answer is " * 100_000,
        "\n" * 1_000_000,
        "a: " * 300_000,
        "x" * 3_000_000,
    ],
    ids=range(10),
)
async def test_hostile_texts_are_searched_quickly(bench, text):
    began = time.process_time()
    verdict = await bench.judge(Answer(), text, "42")
    assert not verdict.passed
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "gold", [None, "", "  ", float("nan"), float("inf"), {}, [], "nan", [None]]
)
async def test_a_gold_that_cannot_be_compared_is_an_error_of_the_task(bench, gold):
    with pytest.raises(TaskError, match="gold"):
        await bench.judge(Answer(), "nan", gold)
    with pytest.raises(TaskError, match="gold"):
        Answer().check_gold(Task(id="t", prompt="q", answer=gold))


def test_declared_kinds_are_checked_on_the_gold():
    for kind, gold in (("number", "red"), ("matrix", "3"), ("interval", "3"), ("equation", "x+1")):
        with pytest.raises(TaskError, match="gold"):
            Answer(kind).check_gold(Task(id="t", prompt="q", answer=gold))


@pytest.mark.parametrize(
    ("kind", "options", "gold", "answer", "passed"),
    [
        ("exact", {}, "a b", "a b", True),
        ("exact", {}, "a b", "A b", False),
        ("text", {}, "The Eiffel Tower.", "the eiffel tower", True),
        ("text", {}, "The Eiffel Tower", "Eiffel", False),
        ("choice", {}, "C", "\\boxed{C}", True),
        ("choice", {}, "C", "The answer is (C)", True),
        ("choice", {}, "C", "Answer: C) Paris", True),
        ("choice", {}, "C", "C or D", False),
        ("choice", {}, "C", "\\boxed{A, B, C, D}", False),
        ("choice", {"choices": ("yes", "no")}, "yes", "Answer: Yes", True),
        ("choice", {"choices": ("yes", "no")}, "yes", "yes no", False),
        ("number", {}, 0.5, "1/2", True),
        ("number", {}, 10, "x", False),
        ("number", {"tolerance": 0.01}, 100, "100.5", True),
        ("number", {"tolerance": 0.01}, 100, "102", False),
        ("number", {"tolerance": 0.001}, "\\sqrt{2}", "1.414", True),
        ("number", {"absolute": 0.1}, 0, "0.05", True),
        ("number", {"tolerance": 0.01}, 0, "0.05", False),
        ("number", {"percent": "strict"}, "10\\%", "10", False),
        ("number", {"percent": "gold"}, "10\\%", "10", True),
        ("number", {"percent": "optional"}, "10", "10\\%", True),
        ("number", {"rounding": False}, "1/3", "0.333333", False),
        ("number", {}, "1/3", "0.333333", True),
        ("list", {}, [1, 2, 3], "1, 2, 3", True),
        ("list", {}, [1, 2, 3], "3, 2, 1", False),
        ("set", {}, [1, 2, 3], "3, 2, 1", True),
        ("tuple", {}, [1, 2], "(1,2)", True),
        ("date", {}, "2024-03-01", "Answer: March 1st, 2024", True),
        ("date", {}, "2024-03-01", "2024-03-02", False),
        ("auto", {"extraction": "last_box"}, "42", "the answer is 42", False),
        ("auto", {"extraction": "last_number"}, "42", "it is 42, I think", True),
        ("auto", {"extraction": "whole"}, "42", "42", True),
        ("auto", {"extraction": r"<a>(.*?)</a>"}, "42", "<a>1</a> <a>42</a>", True),
    ],
)
async def test_kinds_and_options(bench, kind, options, gold, answer, passed):
    verdict = await bench.judge(Answer(kind, **options), answer, gold)
    assert verdict.passed is passed, verdict


def test_wrong_options_are_refused():
    for options in (
        {"kind": "numbr"},
        {"percent": "maybe"},
        {"tolerance": -1},
        {"tolerance": float("nan")},
        {"extraction": "last_bx"},
        {"extraction": "("},
    ):
        with pytest.raises(ConfigError):
            Answer(**options)


def test_boxes():
    assert last_box("\\boxed{a} \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert last_box("\\boxed{\\boxed{3}}") == "\\boxed{3}"
    assert last_box("\\boxed{1} and \\boxed{2}") == "1, 2"
    assert last_box("\\boxed{1} and then \\boxed{2}") == "2"
    assert last_box("\\boxed{\\{1,2\\}}") == "\\{1,2\\}"
    assert last_box("\\boxed{1} \\boxed{2") == "1"
    assert last_box("\\boxed{2", lenient=True) == "2"
    assert last_box("\\boxed 7") == "7"
    assert last_box("nothing") is None
    assert extract("no number 42 here", "last_box") is None


async def test_undecided_abstains(bench):
    verdict = await bench.judge(Answer(), "\\sum_{k=1}^{n} k^3", "\\sum_{k=1}^{n} k^2")
    assert verdict.outcome is Outcome.ABSTAINED


async def test_the_same_verdict_every_time(bench):
    for _ in range(3):
        assert (await bench.judge(Answer(), "\\sec^2(y)", "\\tan^2(y)+1")).passed


@pytest.mark.parametrize(
    ("kind", "gold", "said"),
    [
        ("math", "3/4", r"\boxed{5/4 = 3/4}"),
        ("math", "42", r"\boxed{17 \approx 42}"),
        ("math", "42", r"\boxed{17 = n = 42}"),
        ("number", "42", r"\boxed{41.9 = 42}"),
        ("math", "42", r"\boxed{n = 17 = 42}"),
        ("math", "42", r"\boxed{\phantom{42}}"),
        ("number", "42", r"\boxed{\hphantom{42}}"),
        ("math", "5", r"\boxed{5 \phantom{x} = 6}"),
    ],
)
async def test_an_answer_that_says_two_things_or_nothing(bench, kind, gold, said):
    verdict = await bench.judge(Answer(kind), said, gold)
    assert verdict.outcome is Outcome.FAILED, verdict.explanation


@pytest.mark.parametrize(
    ("kind", "gold", "said"),
    [
        ("math", "3/4", r"\boxed{\frac12 + \frac14 = \frac34}"),
        ("math", "1/3", r"\boxed{\frac13 \approx 0.33}"),
        ("math", "1.41", r"\boxed{\sqrt{2} \approx 1.41}"),
        ("math", "25\\pi", r"\boxed{A = \pi r^2 = 25\pi}"),
        ("math", "50\\%", r"\boxed{0.5 = 50\%}"),
        ("math", "5", r"\boxed{x = \frac{10}{2} = 5}"),
        ("math", "42", r"\boxed{\phantom{0}42}"),
        ("list", "1,2", r"\boxed{[1,2]}"),
        ("choice", "B", "**Answer: (B)** Paris"),
        ("choice", "B", "The correct option is (B) Paris."),
    ],
)
async def test_an_answer_that_says_one_thing_at_length(bench, kind, gold, said):
    verdict = await bench.judge(Answer(kind), said, gold)
    assert verdict.passed, verdict.explanation
