import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import ConfigError
from quintain.messages import (
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    tool_results,
)
from quintain.policies.local.toolcalls import JsonCalls, Tags, tool_format

from .conftest import CALC, MOVE

PIECES = st.sampled_from(
    [
        *("<calc>", "</calc>", "12+3", "<move>", "</move>", '{"x": 1}', "{", "text ", "\n", " "),
        *("<tool_call>", "</tool_call>", '{"name": "calc", "arguments": {"expression": "1"}}'),
    ]
)


@pytest.mark.parametrize("form", [Tags(), JsonCalls()])
@given(pieces=st.lists(PIECES, max_size=12))
def test_what_was_read_is_written_again_character_by_character(form, pieces):
    text = "".join(pieces)
    message = Message(role="assistant", content=form.read(text, [CALC, MOVE]))
    assert form.write(message) == text


def test_a_single_string_argument_stands_bare_between_tags():
    before, call, after = Tags().read("so <calc>12+30</calc>\n", [CALC], turn=3)
    assert (before, after) == (TextPart(text="so "), TextPart(text="\n"))
    assert (call.name, call.arguments, call.error) == ("calc", {"expression": "12+30"}, "")
    assert call.id == "call_3_1"


def test_other_arguments_are_a_json_object():
    (call,) = Tags().read('<move>{"x": 1, "y": 2}</move>', [MOVE])
    assert call.arguments == {"x": 1, "y": 2}
    assert Tags().write_call(call) == '<move>{"x": 1, "y": 2}</move>'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<calc>12+30", "never closed"),
        ("<move>1, 2</move>", "JSON object"),
        ("<move>[1]</move>", "JSON object"),
        ('<move>{"y": 1}</move>', "lacks the argument x"),
        ('<move>{"x": 1, "z": 2}</move>', "no argument z"),
    ],
)
def test_a_malformed_tag_call_says_what_is_wrong(text, complaint):
    (call,) = Tags().read(text, [CALC, MOVE])
    assert complaint in call.error
    assert call.raw == text
    assert call.arguments == {}


@pytest.mark.parametrize(
    ("inside", "complaint"),
    [
        ("nothing", "one JSON object"),
        ("[1]", "one JSON object"),
        ('{"name": "fly", "arguments": {}}', "no function 'fly'"),
        ('{"name": "move", "arguments": {}}', "lacks the argument x"),
        ('{"name": "move", "arguments": 3}', "JSON object"),
    ],
)
def test_a_malformed_json_call_says_what_is_wrong(inside, complaint):
    (call,) = JsonCalls().read(f"<tool_call>{inside}</tool_call>", [CALC, MOVE])
    assert complaint in call.error


def test_json_calls_are_read_with_their_arguments():
    text = '<tool_call>{"name": "move", "arguments": {"x": 1}}</tool_call>'
    (call,) = JsonCalls().read(text, [CALC, MOVE])
    assert (call.name, call.arguments, call.error) == ("move", {"x": 1}, "")


def test_tags_of_unknown_tools_are_text():
    assert Tags().read("<b>bold</b>", [CALC]) == (TextPart(text="<b>bold</b>"),)
    assert Tags().read("<calc>1+1</calc>", []) == (TextPart(text="<calc>1+1</calc>"),)


def test_results_tell_success_from_failure():
    good = ToolResult(call_id="c", name="calc", content=(TextPart(text="42"),))
    bad = ToolResult(call_id="c", name="calc", content=(TextPart(text="no"),), is_error=True)
    assert Tags().write(tool_results(good, bad)) == "result: 42\nerror: no"
    assert JsonCalls().write(tool_results(good)) == "<tool_response>\n42\n</tool_response>"


def test_a_call_without_raw_text_is_written_in_the_format():
    call = ToolCall(id="c", name="calc", arguments={"expression": "1+2"})
    assert Tags().write(assistant("", call)) == "<calc>1+2</calc>"


def test_json_tells_the_model_of_its_tools_and_tags_do_not():
    assert '"name": "calc"' in JsonCalls().describe([CALC])
    assert JsonCalls().describe([]) == ""
    assert Tags().describe([CALC]) == ""


def test_images_are_refused():
    with pytest.raises(ConfigError, match="text only"):
        Tags().write(Message(role="user", content=(ImagePart(data=b"x"),)))


def test_unknown_formats_are_refused():
    with pytest.raises(ConfigError, match="tags"):
        tool_format("yaml")
