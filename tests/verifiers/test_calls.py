"""Calls by name and typed arguments, as made and as written."""

import pytest

from judging import trajectory_of
from quintain.errors import ConfigError, TaskError
from quintain.messages import ToolCall, ToolResult, assistant, tool_results
from quintain.trajectory import Action, Observation, Step
from quintain.verifiers.calls import Calls, read_calls

BOOK = {
    "calls": [
        {"name": "search", "arguments": {"near": [48.5, 2.25]}},
        {
            "name": "book",
            "arguments": {"seats": 2, "window": True},
            "alternatives": {"city": ["Paris", "Paris, FR"], "note": ["", "none"]},
            "optional": ["note", "window"],
        },
    ]
}
SEARCH = ("search", {"near": [48.5, 2.25]})
RIGHT = ("book", {"seats": 2, "city": "Paris"})


def calling(*calls, errors=(), refused=()):
    """A trajectory of one step that makes the calls."""
    made = [
        ToolCall(id=str(n), name=name, arguments=arguments, error="bad" if n in errors else "")
        for n, (name, arguments) in enumerate(calls)
    ]
    results = [
        ToolResult(call_id=call.id, name=call.name, content=(), is_error=int(call.id) in refused)
        for call in made
    ]
    step = Step(
        action=Action(message=assistant("", *made)),
        observation=Observation(messages=(tool_results(*results),)),
    )
    return trajectory_of("done").model_copy(update={"steps": (step,)})


async def judge(bench, answer, *calls, verifier=None, **how):
    context = bench.context("", answer)
    from dataclasses import replace

    context = replace(context, trajectory=calling(*calls, **how))
    return await (verifier or Calls()).judge(context)


@pytest.mark.parametrize(
    "book",
    [
        {"seats": 2, "city": "Paris"},
        {"seats": 2, "city": "Paris, FR", "window": True},
        {"seats": 2, "city": "Paris", "window": True, "note": "none"},
        {"city": "Paris", "seats": 2, "note": ""},
    ],
)
async def test_right(bench, book):
    verdict = await judge(bench, BOOK, SEARCH, ("book", book))
    assert verdict.passed, verdict.explanation
    assert (verdict.verifier, verdict.kind) == ("calls", "formal")


@pytest.mark.parametrize(
    ("book", "why"),
    [
        ({"seats": 2}, "'city' is missing"),
        ({"seats": 2, "city": "Lyon"}, "'city' is 'Lyon'"),
        ({"seats": 2.0, "city": "Paris"}, "'seats' is 2.0"),
        ({"seats": "2", "city": "Paris"}, "'seats' is '2'"),
        ({"seats": 2, "city": ["Paris"]}, "'city' is"),
        ({"seats": 2, "city": "paris"}, "'city' is"),
        ({"seats": 2, "city": "Paris", "window": 1}, "'window' is 1"),
        ({"seats": 2, "city": "Paris", "window": None}, "'window' is None"),
        ({"seats": 2, "city": "Paris", "extra": 1}, "unexpected argument 'extra'"),
    ],
)
async def test_wrong(bench, book, why):
    verdict = await judge(bench, BOOK, SEARCH, ("book", book))
    assert verdict.reward == 0.0
    assert why in verdict.explanation


async def test_floats_take_ints_and_a_tolerance(bench):
    answer = {"calls": [{"name": "f", "arguments": {"x": 2.0, "y": 0.1}}]}
    assert (await judge(bench, answer, ("f", {"x": 2, "y": 0.1}))).passed
    close = ("f", {"x": 2, "y": 0.1000001})
    assert not (await judge(bench, answer, close)).passed
    assert (await judge(bench, answer, close, verifier=Calls(tolerance=1e-3))).passed


async def test_order(bench):
    assert not (await judge(bench, BOOK, RIGHT, SEARCH)).passed
    assert (await judge(bench, {**BOOK, "order": "any"}, RIGHT, SEARCH)).passed
    # The one call that fits both must go to the one that nothing else fits.
    answer = {
        "calls": [
            {"name": "f", "alternatives": {"x": [1, 2]}},
            {"name": "f", "arguments": {"x": 1}},
        ],
        "order": "any",
    }
    assert (await judge(bench, answer, ("f", {"x": 1}), ("f", {"x": 2}))).passed
    assert not (await judge(bench, answer, ("f", {"x": 2}), ("f", {"x": 2}))).passed


async def test_no_more_no_less(bench):
    assert not (await judge(bench, BOOK, SEARCH)).passed
    assert not (await judge(bench, BOOK, SEARCH, RIGHT, RIGHT)).passed
    assert not (await judge(bench, BOOK, SEARCH, RIGHT, ("delete", {}))).passed
    allowed = {**BOOK, "ignore": ["look"]}
    assert (await judge(bench, allowed, ("look", {}), SEARCH, ("look", {}), RIGHT)).passed


async def test_calling_nothing(bench):
    answer = {"no_calls": True}
    assert (await bench.judge(Calls(), "I cannot do that.", answer)).passed
    assert not (await judge(bench, answer, SEARCH)).passed


async def test_calls_that_failed(bench):
    forgiving = Calls(failed="ignore")
    for how in ({"errors": (0,)}, {"refused": (0,)}):
        calls = (("book", {"seats": 9}), SEARCH, RIGHT)
        assert not (await judge(bench, BOOK, *calls, **how)).passed
        assert (await judge(bench, BOOK, *calls, verifier=forgiving, **how)).passed
    assert not (await judge(bench, BOOK, SEARCH, RIGHT, errors=(1,))).passed


async def test_loose_text(bench):
    loose = Calls(text="loose")
    book = ("book", {"seats": 2, "city": "PARIS FR."})
    assert (await judge(bench, BOOK, SEARCH, book, verifier=loose)).passed
    book = ("book", {"seats": "2", "city": "Paris"})
    assert not (await judge(bench, BOOK, SEARCH, book, verifier=loose)).passed


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "search", "arguments": {"near": [48.5, 2.25]}}, '
        '{"name": "book", "arguments": {"seats": 2, "city": "Paris"}}]',
        "[search(near=[48.5, 2.25]), book(city='Paris', seats=2)]",
        "search(near=(48.5, 2.25)), book(city='Paris', seats=2, window=True)",
        "I call:\n```python\n[search(near=[48.5, 2.25]), book(city='Paris', seats=2)]\n```\nDone.",
    ],
)
async def test_written_calls(bench, text):
    verdict = await bench.judge(Calls(source="text"), text, BOOK)
    assert verdict.passed, verdict.explanation


def test_what_text_means():
    assert read_calls("a.b(x=-1, y={'k': [None, 1.5]})") == (
        [("a.b", {"x": -1, "y": {"k": [None, 1.5]}})],
        "",
    )
    assert read_calls("[]") == ([], "")
    assert read_calls('{"name": "f"}') == ([("f", {})], "")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"calls": []},
        {"calls": [{"name": "f"}], "no_calls": True},
        {"calls": [{"name": "f", "arguments": {"x": 1}, "alternatives": {"x": [1]}}]},
        {"calls": [{"name": "f", "optional": ["x"]}]},
        {"calls": [{"name": "f", "alternatives": {"x": []}}]},
        {"calls": [{"name": "f", "arguments": {"x": {"$float": "nan"}}}]},
        {"calls": [{"name": "f", "arguments": {"x": {"$what": 1}}}]},
        {"calls": [{"name": "f"}], "ignore": ["f"]},
    ],
)
async def test_tasks_that_are_refused(bench, answer):
    with pytest.raises(TaskError):
        await bench.judge(Calls(), "", answer)


@pytest.mark.parametrize(
    "option", [{"source": "air"}, {"text": "some"}, {"tolerance": 1}, {"failed": "no"}]
)
def test_options_that_are_refused(option):
    with pytest.raises(ConfigError):
        Calls(**option)
