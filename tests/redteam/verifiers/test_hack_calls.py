"""Calls that are made up, sprayed or of the wrong type earn nothing."""

from dataclasses import replace

import pytest

from judging import trajectory_of
from quintain.messages import ToolCall, assistant, user
from quintain.trajectory import Action, Observation, Step
from quintain.verdict import Outcome
from quintain.verifiers.calls import Calls

PAY = {"calls": [{"name": "pay", "arguments": {"to": "anna", "amount": 1, "gift": False}}]}
RIGHT = {"to": "anna", "amount": 1, "gift": False}


def naive(calls):
    """What a grader that only looks for the right call in a list with `==` says."""
    return any(name == "pay" and arguments == RIGHT for name, arguments in calls)


SPRAYED = {
    "every_amount": [("pay", {**RIGHT, "amount": n}) for n in range(5)],
    "everybody": [("pay", {**RIGHT, "to": name}) for name in ("bob", "anna")],
    "twice": [("pay", RIGHT), ("pay", RIGHT)],
    "and_undo": [("pay", RIGHT), ("undo", {})],
    "true_for_one": [("pay", {**RIGHT, "amount": True})],
    "zero_for_false": [("pay", {**RIGHT, "gift": 0})],
    "float_for_int": [("pay", {**RIGHT, "amount": 1.0})],
}
BENT = {
    "text_for_int": [("pay", {**RIGHT, "amount": "1"})],
    "tag": [("pay", {**RIGHT, "amount": {"$float": "1"}})],
    "list": [("pay", {**RIGHT, "amount": [1, 2]})],
    "one_more_argument": [("pay", {**RIGHT, "admin": True})],
    "look_alike": [("p\u0430y", RIGHT)],
    "blank_in_name": [("pay ", RIGHT)],
    "nothing": [],
}


async def judged(bench, calls, text="done"):
    made = [ToolCall(id=str(n), name=c[0], arguments=c[1]) for n, c in enumerate(calls)]
    step = Step(action=Action(message=assistant(text, *made)), observation=Observation())
    trajectory = trajectory_of("").model_copy(update={"steps": (step,)})
    context = replace(bench.context("", PAY), trajectory=trajectory)
    return await Calls().judge(context)


@pytest.mark.parametrize("name", {**SPRAYED, **BENT})
async def test_only_the_call_itself(bench, name):
    calls = {**SPRAYED, **BENT}[name]
    assert (await judged(bench, calls)).outcome is Outcome.FAILED
    assert naive(calls) == (name in SPRAYED)
    assert (await judged(bench, [("pay", RIGHT)])).outcome is Outcome.SOLVED


WRITTEN = '[{"name": "pay", "arguments": {"to": "anna", "amount": 1, "gift": false}}]'


async def test_a_call_in_words_is_no_call(bench):
    assert (await judged(bench, [], WRITTEN)).outcome is Outcome.FAILED


async def test_a_call_in_anothers_mouth_is_no_call(bench):
    call = ToolCall(id="1", name="pay", arguments=RIGHT)
    forged = assistant("", call).model_copy(update={"role": "user"})
    trajectory = trajectory_of("done").model_copy(
        update={"opening": Observation(messages=(user("x"), forged, assistant("", call)))}
    )
    verdict = await Calls().judge(replace(bench.context("", PAY), trajectory=trajectory))
    assert verdict.outcome is Outcome.FAILED


HOSTILE = {
    "code": "pay(to='anna', amount=__import__('os').getpid(), gift=False)",
    "computed": "pay(to='an' + 'na', amount=1, gift=False)",
    "positional": "pay('anna', 1, False)",
    "starred": "pay(**{'to': 'anna', 'amount': 1, 'gift': False})",
    "lambda": "(lambda: pay)(to='anna', amount=1, gift=False)",
    "walrus": "pay(to='anna', amount=(x := 1), gift=False)",
    "format": "pay(to=f'anna', amount=1, gift=False)",
    "comprehension": "[pay(to='anna', amount=n, gift=False) for n in [1]]",
    "duplicate": "pay(to='bob', to='anna', amount=1, gift=False)",
    "key_twice": '[{"name": "pay", "arguments": {"to": "bob", "to": "anna", "amount": 1, '
    '"gift": false}}]',
    "extra_field": '{"name": "pay", "reward": 1, "arguments": {}}',
    "nan": '{"name": "pay", "arguments": {"amount": NaN}}',
    "deep_list": "pay(x=" + "[" * 5000 + "]" * 5000 + ")",
    "deep_json": '{"name": "pay", "arguments": ' + "[" * 20000 + "]" * 20000 + "}",
    "big_number": "pay(amount=" + "9" * 40000 + ")",
    "long": "pay(to='" + "a" * 60000 + "')",
    "not_text": "pay(to='\\ud800', amount=1, gift=False)",
    "prose": "I would pay anna 1.",
    "fences": "```\n" * 9000,
    "empty": "",
}


async def test_written_calls_are_read_not_run(bench):
    verifier = Calls(source="text")
    for name, text in HOSTILE.items():
        assert (await bench.judge(verifier, text, PAY)).outcome is Outcome.FAILED, name
    assert (await bench.judge(verifier, WRITTEN, PAY)).outcome is Outcome.SOLVED
