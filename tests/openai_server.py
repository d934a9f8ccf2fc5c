"""A real server on loopback that speaks OpenAI chat completions from a script.

::

    async with OpenAIServer([Status(429), "hello"]) as server:
        policy = Chat("m", server.base_url)

Answers are taken in order and the last is repeated; or a function of the request gives them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from quintain.dialects import openai_chat
from quintain.dialects.wire import Request
from quintain.messages import Message, assistant
from quintain.trajectory import Action, Usage


@dataclass(frozen=True)
class Status:
    """A failure."""

    status: int
    body: Any = field(default_factory=lambda: {"error": {"message": "scripted"}})
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """Status 200 with this text."""

    text: str


@dataclass(frozen=True)
class Drop:
    """The connection is cut; after half an answer when `midway`."""

    midway: bool = False


@dataclass(frozen=True)
class Slow:
    """An answer after a while."""

    seconds: float
    answer: Any


OVERFLOW = Status(
    400,
    {
        "error": {
            "message": "This model's maximum context length is 2048 tokens. However, you requested "
            "4096 tokens (4000 in the messages, 96 in the completion).",
            "type": "BadRequestError",
            "code": 400,
        }
    },
)


class OpenAIServer:
    """The server; an async context manager."""

    def __init__(self, script: Sequence[Any] | Callable[[Request], Any] | Any) -> None:
        self.script = [script] if isinstance(script, str | Action | Message | Status) else script
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.active = 0
        self.most_active = 0
        self._runner: web.AppRunner | None = None
        self.base_url = ""

    async def __aenter__(self) -> OpenAIServer:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await self._send(self._next(body), body, request)
        finally:
            self.active -= 1

    def _next(self, body: dict[str, Any]) -> Any:
        if callable(self.script):
            return self.script(openai_chat.decode_request(body))
        return self.script[min(len(self.bodies), len(self.script)) - 1]

    async def _send(
        self, answer: Any, body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        if isinstance(answer, Slow):
            await asyncio.sleep(answer.seconds)
            return await self._send(answer.answer, body, request)
        if isinstance(answer, Status):
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            return web.Response(status=answer.status, text=text, headers=answer.headers)
        if isinstance(answer, Raw):
            return web.Response(text=answer.text)
        if isinstance(answer, Drop):
            if answer.midway:
                response = web.StreamResponse(headers={"Content-Length": "1000"})
                await response.prepare(request)
                await response.write(b'{"choices": [')
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(answer, dict):
            return web.json_response(answer)
        return web.json_response(
            openai_chat.encode_response(as_action(answer), model=body["model"])
        )


def as_action(answer: Any) -> Action:
    """A scripted answer with the usage that a server would report."""
    if isinstance(answer, Action):
        return answer
    message = assistant(answer) if isinstance(answer, str) else answer
    usage = Usage(calls=1, prompt_tokens=10, completion_tokens=3, cached_tokens=4)
    finish = "tool_calls" if message.tool_calls else "stop"
    return Action(message=message, finish=finish, usage=usage)
