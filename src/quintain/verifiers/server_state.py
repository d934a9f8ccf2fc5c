"""Is the state right of a server that the episode acted on: asked of the server, never of a page.

For browser tasks and tasks on services: the environment's own server, which stands outside of the
candidate's sandbox, is asked by the judge over HTTP after the episode. What a page showed, or what
the candidate says it did, counts for nothing.

`Task.answer` is

    {"server": [{"path": "/api/orders/7", "json": {"state": "paid"}, "match": "subset"},
                {"path": "/api/orders/8", "status": 404}]}
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from pydantic import Field, model_validator

from quintain.errors import ConfigError, VerifierError, boundary
from quintain.protocols import WORLD_ARTIFACT, JudgeContext
from quintain.record import Json, Record
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.plain import equal
from quintain.verifiers.state import expectation


class ExpectedAnswer(Record):
    """One question to the server, and what it must answer."""

    path: str = Field(pattern="^/")
    status: int = Field(default=200, ge=200, lt=500)
    json_: Json = Field(default=None, alias="json")
    match: Literal["exact", "subset"] = "exact"
    """`subset`: objects may have further keys, at any depth; lists are of equal length."""

    @model_validator(mode="after")
    def _something(self) -> ExpectedAnswer:
        if "json_" not in self.model_fields_set and self.status == 200:
            raise ValueError("give the JSON that is expected, or a status that is not 200")
        return self


class ExpectedServer(Record):
    """What `Task.answer` says."""

    server: tuple[ExpectedAnswer, ...] = Field(min_length=1)


class Server:
    """Asks the environment's server for its state.

    Args:
        url: of the server; a function of the context; or None: `server_url` in the episode's
            final world.
        headers: sent along (a judge's token).
        timeout_s: of one question.
        max_bytes: of one answer.
        name: the verifier's name.

    Raises:
        ConfigError: the address is not one of HTTP, or a number is not positive.
    """

    def __init__(
        self,
        url: str | Callable[[JudgeContext], str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        max_bytes: int = 5_000_000,
        name: str = "server",
    ) -> None:
        if isinstance(url, str):
            _check_url(url)
        if not (timeout_s > 0 and max_bytes > 0):
            raise ConfigError("timeout_s and max_bytes are positive")
        self.url = url
        self.headers = dict(headers or {})
        self.timeout_s = timeout_s
        self.max_bytes = max_bytes
        self.name = name
        self.kind: Kind = "formal"

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose expectation is malformed.

        Raises:
            TaskError: what is wrong with it.
        """
        expectation(task, ExpectedServer, "server")

    async def judge(self, context: JudgeContext) -> Verdict:
        """Every answer of the server as expected, or not.

        Raises:
            TaskError: the expectation is at fault.
            VerifierError: the server cannot be asked, fails (5xx), or answers with no JSON.
        """
        began = time.monotonic()
        expected = expectation(context.task, ExpectedServer, "server")
        with boundary(VerifierError, f"verifier {self.name}"):
            base = self._base(context)
            checks = []
            async with aiohttp.ClientSession(headers=self.headers) as session:
                for want in expected.server:
                    why = await self._wrong(session, base, want)
                    checks.append(Check(name=want.path, passed=not why, detail=why))
        wrong = next((check for check in checks if not check.passed), None)
        return Verdict.of(
            wrong is None,
            f"{wrong.name}: {wrong.detail}" if wrong else "the server's state is as expected",
            checks=tuple(checks),
        ).signed(self.name, self.kind, time.monotonic() - began)

    def _base(self, context: JudgeContext) -> str:
        if callable(self.url):
            return _check_url(self.url(context))
        if self.url is not None:
            return self.url
        data = context.artifact(WORLD_ARTIFACT)
        world = None if data is None else json.loads(data)
        if not isinstance(world, dict) or not isinstance(world.get("server_url"), str):
            raise VerifierError(f"{self.name}: the episode's world names no server_url")
        return _check_url(world["server_url"])

    async def _wrong(self, session: aiohttp.ClientSession, base: str, want: ExpectedAnswer) -> str:
        async with asyncio.timeout(self.timeout_s):
            async with session.get(base.rstrip("/") + want.path, allow_redirects=False) as answer:
                if answer.status >= 500:
                    raise VerifierError(f"{self.name}: {want.path} answered {answer.status}")
                if answer.status != want.status:
                    return f"status {answer.status}, expected {want.status}"
                if "json_" not in want.model_fields_set:
                    return ""
                body = await answer.content.read(self.max_bytes + 1)
                while len(body) <= self.max_bytes and (more := await answer.content.read(65536)):
                    body += more
        if len(body) > self.max_bytes:
            raise VerifierError(f"{self.name}: {want.path}: more than {self.max_bytes} bytes")
        try:
            found = json.loads(body)
        except ValueError as error:
            raise VerifierError(f"{self.name}: {want.path} answered with no JSON") from error
        return "" if matches(want.json_, found, subset=want.match == "subset") else "another state"


def matches(expected: Json, found: Json, *, subset: bool) -> bool:
    """Whether a JSON value is the expected one; with `subset`, objects may have further keys."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if not (subset or expected.keys() == found.keys()):
            return False
        return all(
            key in found and matches(item, found[key], subset=subset)
            for key, item in expected.items()
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(
            matches(one, other, subset=subset) for one, other in zip(expected, found, strict=True)
        )
    return equal(expected, found)


def _check_url(url: Any) -> str:
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"a server's address begins with http:// or https://, got {url!r}")
    return url
