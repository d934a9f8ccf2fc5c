"""Tools: schemas from signatures, arguments checked and explained, calls that go wrong."""

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import quintain as q
from quintain.envs.tools import (
    FunctionTool,
    ToolError,
    as_content,
    as_tools,
    describe_exec,
)
from quintain.errors import ConfigError, EnvironmentFault, SandboxError
from quintain.messages import ImagePart, TextPart, ToolCall
from quintain.protocols import ExecResult, Tool, ToolContext
from quintain.task import PublicTask

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


def context(events=None, **fields):
    events = [] if events is None else events
    return ToolContext(
        task=PublicTask(id="t", prompt=()),
        sandbox=fields.get("sandbox"),
        world=fields.get("world"),
        seed=7,
        event=lambda kind, data: events.append((kind, data)),
    )


async def call(tool, events=None, /, world=None, **arguments):
    made = ToolCall(id="c1", name=tool.spec.name, arguments=arguments)
    result = await tool.call(made, context(events, world=world))
    assert (result.call_id, result.name) == ("c1", tool.spec.name)
    return result


# --- schemas ------------------------------------------------------------------------------------


def search(
    query: str,
    limit: int = 10,
    kind: Literal["web", "news"] = "web",
    tags: list[str] | None = None,
    weights: dict[str, float] | None = None,
) -> str:
    """Searches the web.

    Two words do more than one.

    Args:
        query: what to look for,
            in plain words: no operators
        limit (int): at most this many
        tags: only pages with all of them

    Returns:
        The pages.
    """
    return f"{query}/{limit}/{kind}/{tags}"


def test_a_function_becomes_a_schema():
    spec = FunctionTool(search).spec
    assert spec.name == "search"
    assert spec.description == "Searches the web.\n\nTwo words do more than one."
    properties = spec.parameters["properties"]
    assert spec.parameters["type"] == "object"
    assert spec.parameters["required"] == ["query"]
    assert spec.parameters["additionalProperties"] is False
    assert properties["query"] == {
        "type": "string",
        "description": "what to look for, in plain words: no operators",
    }
    assert properties["limit"] == {
        "type": "integer",
        "default": 10,
        "description": "at most this many",
    }
    assert properties["kind"] == {"enum": ["web", "news"], "type": "string", "default": "web"}
    assert properties["tags"]["anyOf"][0] == {"type": "array", "items": {"type": "string"}}
    assert properties["tags"]["default"] is None
    assert properties["weights"]["anyOf"][0]["additionalProperties"] == {"type": "number"}


def test_a_function_without_parameters_or_docs():
    def ping():
        return "pong"

    spec = FunctionTool(ping).spec
    assert spec.description == ""
    assert spec.parameters["properties"] == {}
    assert "required" not in spec.parameters


def test_unannotated_parameters_take_anything():
    spec = FunctionTool(lambda x: x, name="same").spec
    assert spec.parameters["properties"] == {"x": {}}


def test_annotated_constraints_and_models_are_described():
    class Place(BaseModel):
        x: int
        y: int

    def move(place: Place, speed: Annotated[float, Field(gt=0, description="m/s")] = 1.0):
        return [place.x, place.y, speed]

    tool = FunctionTool(move)
    assert tool.spec.parameters["$defs"]["Place"]["required"] == ["x", "y"]
    assert tool.spec.parameters["properties"]["speed"]["exclusiveMinimum"] == 0
    assert "greater than 0" in tool.check({"place": {"x": 1, "y": 2}, "speed": 0})
    assert tool.check({"place": {"x": 1, "y": 2}}) == ""


def test_awkward_parameter_names_are_kept():
    def awkward(_x: int, json: str, model_config: int = 1, copy: bool = False, schema: str = ""):
        return [_x, json, model_config, copy, schema]

    tool = FunctionTool(awkward)
    assert list(tool.spec.parameters["properties"]) == [
        "_x",
        "json",
        "model_config",
        "copy",
        "schema",
    ]
    assert tool.spec.parameters["required"] == ["_x", "json"]
    assert tool.check({"_x": 1, "json": "a"}) == ""
    assert "_x: " in tool.check({"json": "a"})


def test_injected_parameters_are_hidden_and_may_be_known_to_checkers_only():
    def peek(n: int, sandbox: "OnlyForCheckers", task, world, context):
        return None

    tool = FunctionTool(peek)
    assert list(tool.spec.parameters["properties"]) == ["n"]
    assert tool.needs_sandbox
    assert "sandbox: " in tool.check({"n": 1, "sandbox": 2})


def test_local_types_are_resolved():
    Colour = Literal["red", "blue"]

    def paint(colour: "Colour"):
        return colour, Colour

    assert FunctionTool(paint).spec.parameters["properties"]["colour"]["enum"] == ["red", "blue"]


class Shop:
    """A thing with methods."""

    def buy(self, item: str, count: int = 1) -> str:
        """Buys something."""
        return f"{count} {item}"

    async def __call__(self, item: str) -> str:
        """Asks for something."""
        return f"no {item}"


async def test_methods_partials_and_callable_objects_are_tools():
    shop = Shop()
    assert (await call(FunctionTool(shop.buy), item="tea")).text == "1 tea"
    partial = functools.partial(shop.buy, count=3)
    tool = FunctionTool(partial, name="buy3", description="Buys three.")
    assert (await call(tool, item="tea")).text == "3 tea"
    assert tool.spec.description == "Buys three."
    tool = FunctionTool(shop, name="ask")
    assert tool.spec.parameters["required"] == ["item"]
    assert (await call(tool, item="tea")).text == "no tea"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda *args: None, r"name is made of letters"),
        (lambda x: x, r"name is made of letters.*give one, as in tool\(function, name='search'\)"),
    ],
)
def test_a_function_without_a_usable_name_is_refused(function, message):
    with pytest.raises(ConfigError, match=message):
        FunctionTool(function)


def test_what_cannot_be_described_is_refused():
    def stars(*numbers: int):
        return numbers

    def positional(x: int, /):
        return x

    def unknown(x: "NoSuchType"):  # noqa: F821
        return x

    def opaque(x: threading.Lock):
        return x

    for function, message in [
        (stars, r"\*args and \*\*kwargs cannot be described"),
        (positional, "'x' is positional-only"),
        (unknown, "tool 'unknown': cannot resolve the annotation 'NoSuchType' of 'x'"),
        (opaque, "tool 'opaque': "),
    ]:
        with pytest.raises(ConfigError, match=message):
            FunctionTool(function)


def test_the_decorator_takes_arguments_or_none():
    @q.tool
    def plain(x: int) -> int:
        """Plain."""
        return x

    @q.tool(name="other", description="Said here.", timeout_s=5)
    def named(x: int) -> int:
        return x

    assert isinstance(plain, Tool)
    assert plain.spec.name == "plain"
    assert (named.spec.name, named.spec.description, named.timeout_s) == ("other", "Said here.", 5)


def test_a_list_of_tools_has_distinct_names():
    assert [t.spec.name for t in as_tools([search, q.tools.shell])] == ["search", "shell"]
    with pytest.raises(ConfigError, match="two tools are named 'search'"):
        as_tools([search, search])
    with pytest.raises(ConfigError, match="a tool is a function or a Tool, got 5"):
        as_tools([5])


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "query: Field required"),
        ({"query": 5}, "query: Input should be a valid string"),
        ({"query": "x", "limit": "many"}, "limit: Input should be a valid integer"),
        ({"query": "x", "kind": "images"}, "kind: Input should be 'web' or 'news'"),
        ({"query": "x", "page": 2}, "page: Extra inputs are not permitted"),
        ({"query": "x", "tags": "a"}, "tags"),
    ],
)
async def test_wrong_arguments_are_explained(arguments, problem):
    tool = FunctionTool(search)
    text = tool.check(arguments)
    assert text.startswith("wrong arguments for search: ")
    assert problem in text
    assert "required: query" in text
    result = await call(tool, **arguments)
    assert result.is_error
    assert result.text == text


async def test_sensible_coercions_are_made():
    tool = FunctionTool(search)
    assert tool.check({"query": "x", "limit": "5"}) == ""
    assert (await call(tool, query="x", limit="5")).text == "x/5/web/None"


# --- calls --------------------------------------------------------------------------------------


async def test_sync_functions_run_beside_the_loop_and_inline_ones_on_it():
    def where() -> list[int]:
        return [threading.get_ident()]

    here = str([threading.get_ident()])
    assert (await call(FunctionTool(where))).text != here
    assert (await call(FunctionTool(where, inline=True))).text == here


async def test_async_functions_run_on_the_loop():
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    assert (await call(FunctionTool(double), n=4)).text == "8"
    assert (await call(FunctionTool(lambda n: double(n), name="late"), n=4)).text == "8"


async def test_the_context_is_filled_in():
    def look(n: int, world, task, context) -> str:
        context.event("look", {"n": n})
        return f"{task.id} {world} {context.seed}"

    events = []
    assert (await call(FunctionTool(look), events, n=1, world={"a": 1})).text == "t {'a': 1} 7"
    assert events == [("look", {"n": 1})]


async def test_an_exception_is_told_and_recorded():
    def fails():
        raise KeyError("no such page")

    events = []
    result = await call(FunctionTool(fails), events)
    assert result.is_error
    assert result.text == "KeyError: 'no such page'"
    assert events == [("tool.exception", {"tool": "fails", "error": "KeyError: 'no such page'"})]


async def test_a_tool_error_is_told_in_its_own_words():
    async def fails():
        raise ToolError("there is no page 9")

    events = []
    result = await call(FunctionTool(fails), events)
    assert result.is_error
    assert result.text == "there is no page 9"
    assert events == []


async def test_an_exit_inside_a_tool_is_a_failed_call():
    def leaves():
        raise SystemExit(3)

    result = await call(FunctionTool(leaves))
    assert result.is_error
    assert "SystemExit" in result.text


async def test_faults_of_the_host_pass_through():
    async def broken():
        raise SandboxError("gone")

    with pytest.raises(SandboxError, match="gone"):
        await call(FunctionTool(broken))


async def test_deadlines_of_sync_and_async_functions():
    release = threading.Event()

    def stuck():
        release.wait()

    async def sleeps():
        await asyncio.sleep(3600)

    try:
        for function in (stuck, sleeps):
            events = []
            result = await call(FunctionTool(function, timeout_s=0.05), events)
            assert result.is_error
            assert result.text == f"{function.__name__} took longer than 0.05 s"
            assert events == [("tool.timeout", {"tool": function.__name__, "timeout_s": 0.05})]
    finally:
        release.set()


async def test_a_timeout_of_the_functions_own_is_its_exception():
    def peer():
        raise TimeoutError("the peer is silent")

    async def async_peer():
        raise TimeoutError("the peer is silent")

    for function in (peer, async_peer):
        events = []
        result = await call(FunctionTool(function, timeout_s=30), events)
        assert result.text == "TimeoutError: the peer is silent"
        assert events[0][0] == "tool.exception"


async def test_cancellation_is_not_swallowed():
    async def sleeps():
        await asyncio.sleep(3600)

    task = asyncio.create_task(call(FunctionTool(sleeps)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_too_many_stuck_functions_are_the_hosts_fault(monkeypatch):
    from quintain import threads

    monkeypatch.setattr(threads, "_threads", threads._Threads())
    monkeypatch.setattr(threads, "MAX_THREADS", 0)
    with pytest.raises(EnvironmentFault):
        await call(FunctionTool(lambda: 1, name="one"))


# --- results ------------------------------------------------------------------------------------


class Answer(BaseModel):
    value: int


IMAGE = ImagePart(data=b"png")


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (None, ()),
        ("text", (TextPart(text="text"),)),
        ("", (TextPart(text=""),)),
        (3, (TextPart(text="3"),)),
        ({"a": [1, "ü"]}, (TextPart(text='{"a": [1, "ü"]}'),)),
        ([], (TextPart(text="[]"),)),
        ((1, 2), (TextPart(text="[1, 2]"),)),
        (Answer(value=2), (TextPart(text='{"value":2}'),)),
        (IMAGE, (IMAGE,)),
        ([TextPart(text="see"), IMAGE], (TextPart(text="see"), IMAGE)),
        ("half \ud800 pair", (TextPart(text="half ? pair"),)),
        (["\udfff"], (TextPart(text='["?"]'),)),
        (ExecResult(exit_code=0, stdout=b"out\n", stderr=b""), (TextPart(text="out"),)),
    ],
)
def test_what_functions_return_becomes_parts(value, parts):
    assert as_content(value) == parts


async def test_half_surrogates_in_errors_do_not_break_the_record():
    def fails():
        raise ValueError("\ud800")

    events = []
    result = await call(FunctionTool(fails), events)
    assert result.model_dump_json()
    assert events[0][1]["error"].encode()


async def test_a_long_text_is_cut_in_its_middle():
    def flood(fails: bool) -> str:
        text = "a" * 1000 + "b" * 1000
        if fails:
            raise ToolError(text)
        return text

    tool = FunctionTool(flood, max_chars=101)
    expected = "a" * 51 + "\n[... 1899 characters left out ...]\n" + "b" * 50
    assert (await call(tool, fails=False)).text == expected
    assert (await call(tool, fails=True)).text == expected
    assert len((await call(FunctionTool(flood), fails=False)).text) == 2000


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecResult(0, b"", b""), ""),
        (ExecResult(2, b"a\n", b"b\n"), "a\n[stderr]\nb\n[exit code 2]"),
        (ExecResult(-9, b"", b"", killed="memory"), "[killed: memory limit]"),
        (ExecResult(0, b"a", b"", truncated=True), "a\n[output cut at the limit]"),
    ],
)
def test_commands_are_described(result, text):
    assert describe_exec(result) == text


def test_the_error_is_at_hand_where_tools_are_written():
    assert q.tools.ToolError is ToolError
