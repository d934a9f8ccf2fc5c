"""The served policy against a real server on loopback that behaves, fails and misbehaves."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from openai_server import OVERFLOW, Drop, OpenAIServer, Raw, Slow, Status
from quintain.errors import ConfigError, ContextOverflow, PolicyError, PolicyRefused
from quintain.messages import Sampling, ToolCall, ToolSpec, assistant, user
from quintain.policies.chat import Chat, ServerRefuses
from quintain.policies.token_history import TokenHistory
from quintain.testing import check_policy
from quintain.trajectory import Action, TokenSpan, Usage

KEY = "sk-very-secret-0123456789"


def served(server, **settings):
    return Chat("m", server.base_url, **{"backoff_s": 0.001, "api_key": KEY, **settings})


async def say(policy, text="hi", *, session="s", sampling=None, tools=()):
    try:
        return await policy.act(
            [user(text)], tools=tools, sampling=sampling or Sampling(), seed=5, session=session
        )
    finally:
        await policy.close()


async def test_an_answer_and_what_was_asked():
    call = ToolCall(id="c", name="add", arguments={"a": 1})
    async with OpenAIServer(assistant("let me see", call)) as server:
        policy = served(
            server,
            extra={"chat_template_kwargs": {"enable_thinking": False}},
            omit=("top_p",),
            headers={"X-Team": "red"},
            usd_per_million_prompt=1.0,
            usd_per_million_completion=2.0,
            usd_per_million_cached=0.5,
        )
        action = await say(policy, sampling=Sampling(max_tokens=9), tools=[ToolSpec(name="add")])
    assert action.message == assistant("let me see", call)
    assert action.finish == "tool_calls"
    usage = action.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 3, 4)
    assert usage.cost_usd == pytest.approx((6 * 1.0 + 4 * 0.5 + 3 * 2.0) / 1e6)
    body, headers = server.bodies[0], server.headers[0]
    assert body["max_tokens"] == 9
    assert body["seed"] == 5
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "top_p" not in body
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["X-Session-Id"] == "s"
    assert headers["X-Team"] == "red"


async def test_conformance():
    async with OpenAIServer("yes") as server:
        await check_policy(served(server), deterministic=True)


@pytest.mark.parametrize(
    "failure",
    [
        Status(429),
        Status(429, headers={"Retry-After": "0"}),
        Status(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Status(500),
        Status(503, "<html>upstream</html>"),
        Drop(),
        Drop(midway=True),
        Raw("not json"),
        Raw('{"choices": []}'),
        Raw('{"error": {"message": "upstream overloaded"}}'),
        Raw("[]"),
        Slow(60.0, "too late"),
    ],
)
async def test_what_may_pass_is_tried_again(failure):
    async with OpenAIServer([failure, failure, "at last"]) as server:
        policy = served(server, timeout_s=1.0 if isinstance(failure, Slow) else 30.0)
        assert (await say(policy)).message.text == "at last"
        assert policy.retried == 2
        assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Status(500, {"error": "boom"}), "status 500: boom"),
        (Slow(60.0, "late"), "no answer within 0.5 s"),
        (Raw("nope"), "an answer that is none"),
        (Drop(), "ServerDisconnectedError"),
    ],
)
async def test_what_does_not_pass_is_a_policy_error(failure, reason):
    async with OpenAIServer([failure]) as server:
        with pytest.raises(PolicyError, match=f"failed 3 times, last: {reason}") as caught:
            await say(
                served(server, retries=2, timeout_s=0.5 if isinstance(failure, Slow) else 30.0)
            )
    assert caught.value.retryable
    assert not isinstance(caught.value, PolicyRefused)
    assert isinstance(failure, Slow) or len(server.bodies) == 3


async def test_nobody_listens():
    async with OpenAIServer("x") as server:
        policy = served(server, retries=1)
    with pytest.raises(PolicyError, match="failed 2 times, last: ClientConnector"):
        await say(policy)


async def test_retry_after_is_honoured():
    loop = asyncio.get_running_loop()
    async with OpenAIServer([Status(429, headers={"Retry-After": "0.3"}), "ok"]) as server:
        began = loop.time()
        await say(served(server))
        assert loop.time() - began >= 0.3
    # But never longer than max_backoff_s.
    async with OpenAIServer([Status(429, headers={"Retry-After": "3600"}), "ok"]) as server:
        assert (await say(served(server, max_backoff_s=0.01))).message.text == "ok"


async def test_a_server_that_asks_one_call_to_wait_means_all():
    loop = asyncio.get_running_loop()
    arrived = []

    def answer(request):
        arrived.append(loop.time())
        return Status(429, headers={"Retry-After": "0.5"}) if len(arrived) == 1 else "ok"

    async with OpenAIServer(answer) as server:
        policy = served(server)

        def call(session):
            return policy.act([user("hi")], tools=(), sampling=Sampling(), seed=0, session=session)

        first = asyncio.create_task(call("first"))
        while policy.retried == 0:
            await asyncio.sleep(0.005)
        await asyncio.gather(first, *(call(str(i)) for i in range(5)))
        assert len(arrived) == 7
        assert min(arrived[1:]) - arrived[0] >= 0.45
        assert policy.retried == 1
        await policy.close()


@pytest.mark.parametrize(
    "overflow",
    [
        OVERFLOW,
        Status(400, {"error": {"code": "context_length_exceeded", "message": "too long"}}),
        Status(400, {"error": {"type": "exceed_context_size_error", "message": "the request "
                               "exceeds the available context size"}}),
        Status(400, {"message": "The input (5000 tokens) is longer than the model's context "
                     "length (4096 tokens)."}),
        Status(413, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
    ],
)  # fmt: skip
async def test_a_conversation_that_is_too_long_is_a_limit(overflow):
    async with OpenAIServer([overflow]) as server:
        with pytest.raises(ContextOverflow):
            await say(served(server))
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (
            Status(401),
            ServerRefuses,
            r"refuses the key \(401; a key was sent\): set api_key_env or give",
        ),
        (Status(404), ServerRefuses, "base_url ends with /v1 as a rule"),
        (Status(403), PolicyRefused, "may not use this model, or the content is refused"),
        (Status(402), PolicyRefused, "no credit left"),
        (Status(429, {"error": {"code": "insufficient_quota"}}), PolicyRefused, "quota is used up"),
        (
            Status(400, {"error": {"message": "Unsupported parameter: temperature"}}),
            PolicyRefused,
            "Unsupported parameter: temperature",
        ),
        (Status(302, headers={"Location": "http://127.0.0.1:1/"}), PolicyRefused, "status 302"),
    ],
)
async def test_what_never_passes_is_said_at_once(failure, kind, message):
    async with OpenAIServer([failure]) as server:
        with pytest.raises(kind, match=message) as caught:
            await say(served(server))
    assert type(caught.value) is kind
    assert not caught.value.retryable
    assert isinstance(caught.value, ConfigError) == (kind is ServerRefuses)
    assert len(server.bodies) == 1


async def test_secrets_are_never_shown(caplog):
    caplog.set_level(logging.DEBUG)
    echoed = Status(500, {"error": f"Incorrect API key provided: {KEY}, team hunter22"})
    async with OpenAIServer([echoed]) as server:
        policy = served(server, retries=1, headers={"X-Team": "hunter22"})
        with pytest.raises(PolicyError) as caught:
            await say(policy)
    shown = f"{policy!r} {vars(policy)} {caught.value} {caught.value.__cause__!r} {caplog.text}"
    assert KEY not in shown
    assert "hunter22" not in shown
    assert "Incorrect API key provided: …" in shown
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"  # the control


async def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    async with OpenAIServer("x") as server:
        await say(Chat("m", server.base_url, api_key_env="MY_KEY"))
        monkeypatch.delenv("MY_KEY")
        await say(Chat("m", server.base_url, api_key_env="MY_KEY"))
        # The key of OpenAI is for OpenAI's hosts: it is not sent to whoever stands in base_url.
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        await say(Chat("m", server.base_url))
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in server.headers[1]
    assert "Authorization" not in server.headers[2]
    assert Chat("m")._key.value == KEY
    assert Chat("m", "https://evil-openai.com/v1")._key.value == ""


async def test_no_more_calls_at_once_than_connections():
    async with OpenAIServer([Slow(0.25, "x")]) as server:
        policy = served(server, connections=3, timeout_s=2.0)
        async with asyncio.TaskGroup() as group:
            for i in range(30):  # 10 rounds of 0.25 s: longer than the deadline of one call
                group.create_task(
                    policy.act([user("hi")], tools=(), sampling=Sampling(), seed=0, session=str(i))
                )
        assert server.most_active == 3
        assert policy.retried == 0
        await policy.close()
        await policy.close()


async def test_cancellation_is_no_failure():
    async with OpenAIServer([Slow(5.0, "x")]) as server:
        policy = served(server)
        task = asyncio.create_task(say(policy))
        while not server.bodies:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert policy.retried == 0


def test_one_policy_serves_many_loops(recwarn):
    async def once(policy, server):
        async with server:
            policy.base_url = server.base_url
            return await policy.act(
                [user("hi")], tools=(), sampling=Sampling(), seed=0, session="s"
            )

    policy = Chat("m", "http://127.0.0.1:1/v1", api_key="")
    for _ in range(3):  # a loop of its own each time, and no close
        assert asyncio.run(once(policy, OpenAIServer("ok"))).message.text == "ok"
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url is an http address"),
        ({"base_url": "http://user:pw@host/v1"}, "holds a password"),
        ({"model": ""}, "model is empty"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        Chat(**{"model": "m", "base_url": "http://localhost/v1", **settings})


# --- tokens -------------------------------------------------------------------------------------


class Sampler:
    """A server's side of tokens: a prompt is a start token, then what was said, token by token."""

    def __init__(self):
        self.turn = 0

    def __call__(self, request):
        said = [m for m in request.messages if m.role == "assistant"]
        prompt = [1]
        for n, message in enumerate(said):
            prompt += [100 + n, *map(ord, message.text), 2]
        prompt += [100 + len(said)]
        text = "ab"[: len(said) + 1]
        ids = (*map(ord, text), 2)
        span = TokenSpan(prompt_delta_ids=tuple(prompt), token_ids=ids,
                         logprobs=(-0.5,) * len(ids), policy_version=0)  # fmt: skip
        return Action(
            message=assistant(text),
            tokens=(span,),
            usage=Usage(calls=1, prompt_tokens=len(prompt), completion_tokens=len(ids)),
        )


async def talk(policy, turns, session="s", sampling=None, forget=None):
    messages, spans = [user("hi")], []
    for turn in range(turns):
        if turn == forget:
            messages = messages[:1]
        action = await policy.act(
            messages, tools=(), sampling=sampling or Sampling(), seed=0, session=session
        )
        spans += action.tokens
        messages += [action.message, user("more")]
    return spans


async def test_spans_hold_what_is_new():
    async with OpenAIServer(Sampler()) as server:
        policy = served(server, tokens="raw", version=7)
        spans = await talk(policy, 3)
        other = await talk(policy, 1, session="other")
        assert server.bodies[0]["return_token_ids"] is True
        assert server.bodies[0]["logprobs"] is True
        await policy.close()
    assert [span.prompt_delta_ids for span in spans] == [(1, 100), (101,), (102,)]
    assert [span.token_ids for span in spans] == [(97, 2), (97, 98, 2), (97, 98, 2)]
    assert not any(span.restart for span in spans)
    assert {span.policy_version for span in spans} == {7}
    assert other[0].prompt_delta_ids == (1, 100)


async def test_a_rewritten_prompt_begins_a_new_row():
    async with OpenAIServer(Sampler()) as server:
        policy = served(server, tokens="raw")
        spans = await talk(policy, 3, forget=2)
        await policy.close()
    assert [span.restart for span in spans] == [False, False, True]
    assert spans[2].prompt_delta_ids == (1, 100)


async def test_raw_logprobs_are_those_of_the_behaviour_policy_only_untouched():
    async with OpenAIServer(Sampler()) as server:
        warm = Sampling(temperature=0.7)
        assert await talk(served(server, tokens="raw"), 1, sampling=warm) == []
        assert len(await talk(served(server, tokens="processed"), 1, sampling=warm)) == 1
        assert await talk(served(server), 1) == []


async def test_a_server_without_token_ids_is_told():
    async with OpenAIServer("x") as server:
        with pytest.raises(PolicyRefused, match="gave no token ids"):
            await say(served(server, tokens="raw"))


async def test_conformance_with_tokens():
    async with OpenAIServer(Sampler()) as server:
        await check_policy(served(server, tokens="raw"), deterministic=True)


def test_token_history_is_bounded():
    history = TokenHistory(max_tokens=10)
    assert history.extend("a", (1, 2), (3,)) == ((1, 2), False)
    assert history.extend("a", (1, 2, 3, 4), (5,)) == ((4,), False)
    history.extend("b", (1,) * 5, (2,) * 4)
    # "a" was forgotten to make room: it begins a new row, and says so.
    assert history.extend("a", (1, 2, 3, 4, 5), (6,)) == ((1, 2, 3, 4, 5), True)
    assert history.extend("c", (1,), (2,)) == ((1,), False)


def test_the_body_is_json_with_any_text():
    # A lone surrogate in a prompt must not stop the call.
    async def main():
        async with OpenAIServer("ok") as server:
            policy = served(server)
            body = {"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}
            action, _ = await policy._ask(body, "s")
            await policy.close()
            return action, json.dumps(server.bodies)

    action, sent = asyncio.run(main())
    assert action.message.text == "ok"
    assert '"content": "?"' in sent
