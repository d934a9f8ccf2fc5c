"""The scripted policy says what it is told, and reports tokens that add up."""

from __future__ import annotations

import pytest

from quintain.errors import PolicyError
from quintain.messages import Message, Sampling, ToolCall, assistant, system, user
from quintain.policies.scripted import END_ID, ROLE_IDS, VOCABULARY, Scripted
from quintain.trajectory import Action


async def say(policy, messages, session="s", seed=0):
    return await policy.act(messages, tools=(), sampling=Sampling(), seed=seed, session=session)


async def test_one_answer_is_one_object():
    policy = Scripted("42")
    first = await say(policy, [user("?")])
    assert first.message == assistant("42")
    assert first is await say(policy, [user("other")], session="t")


async def test_a_list_is_followed_in_each_session_and_ends():
    policy = Scripted([assistant("", ToolCall(id="c", name="f")), "done"])
    for session in ("a", "b"):
        assert (await say(policy, [user("?")], session)).finish == "tool_calls"
    assert (await say(policy, [user("?")], "a")).message.text == "done"
    with pytest.raises(PolicyError, match="has 2 answers and was asked for number 3") as caught:
        await say(policy, [user("?")], "a")
    assert not caught.value.retryable
    assert (await say(policy, [user("?")], "b")).message.text == "done"


async def test_functions_see_messages_tools_and_seed():
    def echo(messages, tools, seed):
        return f"{messages[-1].text} {len(tools)} {seed}"

    async def later(messages, tools, seed):
        return Action(message=assistant("async"))

    assert (await say(Scripted(echo), [user("hi")], seed=7)).message.text == "hi 0 7"
    assert (await say(Scripted(later, latency_s=0.001), [user("hi")])).message.text == "async"


@pytest.mark.parametrize("bad", [None, 3, user("not an assistant")])
async def test_answers_that_are_none(bad):
    with pytest.raises(PolicyError, match="a script answers with"):
        await say(Scripted(lambda *_: bad), [user("?")])


def read(ids):
    """Token ids back to (role, text), the control for what the spans claim."""
    out, role, text = [], None, bytearray()
    marks = {value: key for key, value in ROLE_IDS.items()}
    for token in ids:
        if token in marks:
            role, text = marks[token], bytearray()
        elif token == END_ID:
            out.append((role, text.decode()))
        else:
            text.append(token)
    return out


async def test_tokens_are_linear_over_the_turns():
    policy = Scripted(lambda messages, *_: f"answer {len(messages)} é", tokens=True)
    # The prompt holds an example turn: that is not the policy's own.
    talk: list[Message] = [system("S"), user("q0"), assistant("example"), user("q1")]
    tokens: list[int] = []
    for turn in range(3):
        action = await say(policy, talk)
        (span,) = action.tokens
        assert not span.restart
        assert span.logprobs == (0.0,) * len(span.token_ids)
        assert action.usage.completion_tokens == len(span.token_ids)
        tokens += [*span.prompt_delta_ids, *span.token_ids]
        talk += [action.message, user(f"more {turn}")]
    assert max(tokens) < VOCABULARY
    assert read(tokens) == [(m.role, m.text) for m in talk[:-1]]
    # A conversation that got shorter does not continue: a new row begins.
    (span,) = (await say(policy, talk[:2])).tokens
    assert span.restart
    assert read([*span.prompt_delta_ids, *span.token_ids])[0] == ("system", "S")


async def test_close_twice():
    policy = Scripted(["a"])
    await say(policy, [user("?")])
    await policy.close()
    await policy.close()
    assert (await say(policy, [user("?")])).message.text == "a"
