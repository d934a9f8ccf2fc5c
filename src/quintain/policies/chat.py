"""A model behind any OpenAI-compatible server: OpenAI, vLLM, SGLang, llama.cpp, OpenRouter, ….

Every wait has a deadline, every fault is attributed. What may pass (429, 5xx, a dropped connection)
is retried with exponential back-off and full jitter (Brooker 2015, "Exponential Backoff and
Jitter"), or as long as the server's Retry-After says. What never passes (a wrong key, an unknown
model) ends the run with a message that says what to do. A conversation that is too long is a limit
of the episode, not a fault.

Token ids are taken from the server or not at all: text is never tokenised again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from quintain.dialects import openai_chat
from quintain.errors import ConfigError, ContextOverflow, PolicyError, PolicyRefused
from quintain.messages import Message, Sampling, ToolSpec
from quintain.policies.token_history import TokenHistory
from quintain.record import Json, derive_seed
from quintain.trajectory import Action, TokenSpan, Usage

logger = logging.getLogger(__name__)

_OVERFLOW = re.compile(
    r"context[ _]length|context[ _]window|context size|exceed_context_size|max_model_len"
    r"|prompt is too long|too many (?:input )?tokens|longer than the model"
    r"|maximum (?:input|context|prompt)|input is too long",
    re.IGNORECASE,
)
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_MAX_BODY = 64 * 1024 * 1024


class ServerRefuses(PolicyRefused, ConfigError):
    """The server refuses every call: the key, the model's name or the address is wrong."""


@dataclass(frozen=True, slots=True)
class Prices:
    """USD for a million tokens."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """Of prompt tokens read from the server's cache; None: as any other."""

    def cost_usd(self, usage: Usage) -> float:
        """What a call costs."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        cached_price = self.prompt if self.cached is None else self.cached
        return (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * cached_price
            + usage.completion_tokens * self.completion
        ) / 1e6


class _Secret:
    """A key that no repr, log or traceback shows."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "'…'" if self.value else "''"


class _Retry(Exception):
    """A call that may be made again; `after_s` as the server asks."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(slots=True)
class _Line:
    """The connections of one event loop."""

    client: aiohttp.ClientSession
    keeper: AsyncGenerator[aiohttp.ClientSession, None]
    """Holds the client; ended by `close`, or by the loop at its own end."""
    free: asyncio.Semaphore
    """Waiting for a connection is not the server's fault: it stands outside the deadline."""
    hold_until: float = 0.0
    """The loop's time before which no call is made: a server that asked one call to wait means
    all of them."""


class Chat:
    """A served model.

    Args:
        model: the server's name of it.
        base_url: up to and with `/v1`.
        api_key: None: from the environment variable `api_key_env`, where set.
        api_key_env: which variable holds the key; None: OPENAI_API_KEY for OpenAI's own hosts, and
            no key for any other host, so that no key goes where it was not meant to.
        name: of the policy; None: the model's.
        timeout_s: deadline of one attempt, the server's queue included.
        connect_s: deadline of making a connection.
        retries: further attempts of a call.
        backoff_s: the first wait; doubles each time, up to `max_backoff_s`, with full jitter.
        max_backoff_s: the longest wait, Retry-After included.
        connections: calls at once; more wait here, outside the deadline.
        usd_per_million_prompt: price of prompt tokens, for the cost.
        usd_per_million_completion: price of sampled tokens.
        usd_per_million_cached: price of cached prompt tokens; None: as any prompt token.
        tokens: "no"; or ask the server for token ids and log-probabilities (vLLM, SGLang), which
            training needs: "raw" where it reports the model's own log-probabilities (then they are
            those of the behaviour policy only at temperature 1, top-p 1 and top-k off, and spans
            are given only then), "processed" where it reports them after temperature and
            truncation (vLLM's `--logprobs-mode processed_logprobs`).
        max_tokens_field: how the server calls the bound; None: by the host.
        reasoning: under which name reasoning is sent back; "": it is not.
        omit: fields of the body not to send ("temperature" for models that refuse it).
        extra: fields to add to the body.
        headers: to add to each request.
        session_header: the header that names the rollout, for routers that keep a prefix cache.
    """

    def __init__(
        self,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        name: str | None = None,
        version: int = 0,
        timeout_s: float = 600.0,
        connect_s: float = 10.0,
        retries: int = 5,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
        connections: int = 256,
        usd_per_million_prompt: float = 0.0,
        usd_per_million_completion: float = 0.0,
        usd_per_million_cached: float | None = None,
        tokens: Literal["no", "raw", "processed"] = "no",
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None,
        reasoning: openai_chat.ReasoningField = "reasoning_content",
        omit: Sequence[str] = (),
        extra: Mapping[str, Json] | None = None,
        headers: Mapping[str, str] | None = None,
        session_header: str = "X-Session-Id",
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(
                f"base_url is an http address such as http://localhost:8000/v1, got {base_url!r}"
            )
        if address.username or address.password:
            raise ConfigError("base_url holds a password; give api_key or headers instead")
        if not model:
            raise ConfigError("model is empty; GET {base_url}/models lists what a server has")
        if timeout_s <= 0 or connect_s <= 0 or retries < 0 or connections < 1:
            raise ConfigError(
                "timeout_s and connect_s are positive, retries >= 0, connections >= 1"
            )
        self.model = model
        self.base_url = base_url.rstrip("/")
        self.name = name or model
        self.version = version
        self.timeout_s = timeout_s
        self.connect_s = connect_s
        self.retries = retries
        self.backoff_s = backoff_s
        self.max_backoff_s = max_backoff_s
        self.connections = connections
        self.prices = Prices(
            usd_per_million_prompt, usd_per_million_completion, usd_per_million_cached
        )
        self.tokens = tokens
        openai = f".{address.hostname}".endswith((".openai.com", ".azure.com"))
        self.max_tokens_field = max_tokens_field or (
            "max_completion_tokens" if openai else "max_tokens"
        )
        self.reasoning = reasoning
        self.omit = tuple(omit)
        self.extra = dict(extra or {})
        self.session_header = session_header
        self.retried = 0
        """Attempts that were made again, over all calls."""
        self._api_key_env = api_key_env or ("OPENAI_API_KEY" if openai else "")
        self._key = _Secret(
            api_key if api_key is not None else os.environ.get(self._api_key_env, "")
        )
        self._headers = {name: _Secret(value) for name, value in (headers or {}).items()}
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
        self._history = TokenHistory()

    def __repr__(self) -> str:
        return f"Chat({self.model!r}, {self.base_url!r})"

    # --- the contract ----------------------------------------------------------------------------

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """Asks the server for one message.

        Raises:
            ContextOverflow: the conversation is too long for the model.
            ServerRefuses: the server refuses this key, model or address, now and later.
            PolicyRefused: it refuses this request.
            PolicyError: it failed, `retries` times over.
        """
        body = openai_chat.encode_request(
            messages,
            model=self.model,
            tools=tools,
            sampling=sampling,
            seed=seed,
            max_tokens_field=self.max_tokens_field,
            reasoning=self.reasoning,
            token_ids=self.tokens != "no",
            logprobs=self.tokens != "no",
        )
        body.update(self.extra)
        for key in self.omit:
            body.pop(key, None)
        action, answer = await self._ask(body, session)
        usage = action.usage
        if not usage.cost_usd:
            usage = usage.model_copy(update={"cost_usd": self.prices.cost_usd(usage)})
        spans = self._spans(answer, sampling, session)
        return action.model_copy(update={"usage": usage, "tokens": spans})

    def _spans(
        self, answer: Mapping[str, Json], sampling: Sampling, session: str
    ) -> tuple[TokenSpan, ...]:
        """One span where the server gave ids and the log-probabilities of the behaviour policy."""
        if self.tokens == "no":
            return ()
        prompt, sampled, logprobs = openai_chat.decode_tokens(answer)
        if prompt is None or sampled is None or logprobs is None:
            raise PolicyRefused(
                f"{self.base_url} gave no token ids or no log-probabilities for {self.model!r}; "
                "tokens='raw' needs a server that knows return_token_ids and logprobs"
            )
        untouched = sampling.temperature == 1.0 and sampling.top_p == 1.0
        untouched = untouched and not sampling.top_k and not sampling.min_p
        if self.tokens == "raw" and not untouched:
            return ()
        delta, restart = self._history.extend(session, prompt, sampled)
        return (
            TokenSpan(
                prompt_delta_ids=delta,
                token_ids=sampled,
                # Rounding on the server makes tiny positive values of certain tokens.
                logprobs=tuple(min(0.0, value) for value in logprobs),
                policy_version=self.version,
                restart=restart,
            ),
        )

    async def close(self) -> None:
        """Closes the connections of this event loop; the policy can be used again."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.keeper.aclose()

    # --- asking ----------------------------------------------------------------------------------

    async def _line(self) -> _Line:
        """The connections of the running loop."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            keeper = _held(self.connect_s)
            line = _Line(await anext(keeper), keeper, asyncio.Semaphore(self.connections))
            self._lines[loop] = line
        return line

    async def _ask(self, body: Json, session: str) -> tuple[Action, Mapping[str, Json]]:
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        line = await self._line()
        loop = asyncio.get_running_loop()
        for attempt in range(self.retries + 1):
            if (held := line.hold_until - loop.time()) > 0:
                await asyncio.sleep(held * (1 + derive_seed("hold", session) / 2**65))
            try:
                answer = await self._once(line, data, session)
                return openai_chat.decode_response(answer), answer
            except (_Retry, aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
                if isinstance(error, PolicyError):
                    raise
                reason = self._say(error)
                if attempt == self.retries:
                    raise PolicyError(
                        f"{self.base_url} failed {attempt + 1} times, last: {reason}"
                    ) from error
                after_s = getattr(error, "after_s", None)
                wait = self._wait_s(session, attempt, after_s)
                if after_s is not None:
                    until = loop.time() + min(after_s, self.max_backoff_s)
                    line.hold_until = max(line.hold_until, until)
            self.retried += 1
            logger.info("%s: %s; again in %.1f s", self.base_url, reason, wait)
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _say(self, error: Exception) -> str:
        if isinstance(error, aiohttp.ServerTimeoutError):
            return f"no connection within {self.connect_s:g} s"
        if isinstance(error, TimeoutError):
            return f"no answer within {self.timeout_s:g} s"
        if isinstance(error, _Retry):
            return str(error)
        if isinstance(error, ValueError):
            return f"an answer that is none: {error}"
        return f"{type(error).__name__}: {error}"

    def _wait_s(self, session: str, attempt: int, after_s: float | None) -> float:
        """Full jitter below the exponential bound; never before the server's Retry-After."""
        bound = min(self.max_backoff_s, self.backoff_s * 2.0**attempt)
        jitter = bound * derive_seed("jitter", session, attempt) / 2**63
        return jitter if after_s is None else min(self.max_backoff_s, after_s + jitter / 4)

    async def _once(self, line: _Line, data: bytes, session: str) -> Mapping[str, Json]:
        headers = {"Content-Type": "application/json", self.session_header: session}
        headers |= {name: secret.value for name, secret in self._headers.items()}
        if self._key.value:
            headers["Authorization"] = f"Bearer {self._key.value}"
        url = f"{self.base_url}/chat/completions"
        async with (
            line.free,
            asyncio.timeout(self.timeout_s),
            line.client.post(url, data=data, headers=headers, allow_redirects=False) as response,
        ):
            text = await _read(response)
        if response.status == 200:
            answer = json.loads(text)
            if isinstance(answer, dict) and "choices" not in answer and answer.get("error"):
                # Some routers send upstream's failure with status 200.
                raise _Retry(f"error in the answer: {_brief(text)}")
            if not isinstance(answer, dict):
                raise ValueError(f"expected an object, got {type(answer).__name__}")
            return answer
        raise self._failure(response.status, text, response.headers)

    def _failure(self, status: int, text: str, headers: Mapping[str, str]) -> Exception:
        """What a status other than 200 means."""
        told = self._masked(_brief(text))
        if status in (400, 413, 422) and _OVERFLOW.search(text):
            return ContextOverflow(f"{self.model}: {told}")
        if status == 401:
            have = "a key was sent" if self._key.value else "no key was sent"
            where = f"set {self._api_key_env}" if self._api_key_env else "set api_key_env"
            return ServerRefuses(
                f"{self.base_url} refuses the key (401; {have}): {where} or give api_key: {told}"
            )
        if status == 404:
            return ServerRefuses(
                f"{self.base_url}/chat/completions or model {self.model!r} is not there (404): "
                f"base_url ends with /v1 as a rule, GET {self.base_url}/models lists the models: "
                f"{told}"
            )
        if status in _RETRIED and "insufficient_quota" not in text:
            return _Retry(f"status {status}: {told}", _retry_after(headers))
        advice = {
            402: "no credit left",
            403: "this key may not use this model, or the content is refused",
            429: "the quota is used up",
        }.get(status, "the server refuses this request (see `omit` and `extra` for its fields)")
        return PolicyRefused(f"{self.base_url}: status {status}: {advice}: {told}")

    def _masked(self, text: str) -> str:
        """The text without any secret that a server may repeat."""
        for secret in (self._key, *self._headers.values()):
            if len(secret.value) >= 4:
                text = text.replace(secret.value, "…")
        return text


async def _held(connect_s: float) -> AsyncGenerator[aiohttp.ClientSession, None]:
    """One client, closed with this generator: by its user, or by the loop when it ends."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        yield client


async def _read(response: aiohttp.ClientResponse) -> str:
    """The body as text; one that does not end is refused."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > _MAX_BODY:
            raise ValueError(f"more than {_MAX_BODY} bytes")
    return b"".join(chunks).decode("utf-8", "replace")


def _brief(text: str) -> str:
    """The message in an error body, on one line."""
    try:
        found = json.loads(text)
        found = found.get("error", found) if isinstance(found, dict) else found
        found = found.get("message", found) if isinstance(found, dict) else found
        text = found if isinstance(found, str) else json.dumps(found)
    except ValueError:
        pass  # not JSON: told as it is
    text = " ".join(text.split())
    return text[:500] + "…" if len(text) > 500 else text or "(empty body)"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: a number, or a date (RFC 9110, 10.2.3)."""
    value = headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass  # a date, or nothing
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - time.time())


chat = Chat
"""As it is called: `quintain.chat("Qwen3-8B", base_url="http://gpu:8000/v1")`."""
