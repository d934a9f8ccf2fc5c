"""Does a service that an episode left answer rightly: started anew in a clean room, asked there.

The named files go into a clean room, where the task's command starts the service and a probe of
ours asks it over HTTP. What it answers is an answer, compared outside: the expected values are not
in the room. Its processes end with the verdict; what ran in the episode's sandbox plays no part.

`Task.answer` is

    {"service": {"files": ["app.py"], "start": ["python3", "app.py"], "port": 8000},
     "requests": [{"path": "/add?a=1&b=2", "json": 3},
                  {"method": "POST", "path": "/items", "body": {"n": 1}, "status": 201}]}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Literal

from pydantic import Field, model_validator

from quintain.errors import ConfigError, QuintainError, VerifierError, boundary
from quintain.protocols import JudgeContext, Sandbox
from quintain.record import Json, Record
from quintain.task import SandboxSpec, Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.server_state import matches
from quintain.verifiers.state import expectation

MAX_FILE_BYTES = 10_000_000
PROBE = r"""
import json, socket, sys, time, urllib.error, urllib.request
job = json.load(sys.stdin)
until = time.monotonic() + job["start_s"]
while True:
    try:
        socket.create_connection(("127.0.0.1", job["port"]), 1).close()
        break
    except OSError:
        if time.monotonic() > until:
            print(json.dumps({"up": False, "answers": []}))
            sys.exit()
        time.sleep(0.02)
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay)
answers = []
for one in job["requests"]:
    body = None if one["body"] is None else json.dumps(one["body"]).encode()
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (job["port"], one["path"]), body,
                                     {"Content-Type": "application/json"}, method=one["method"])
    try:
        try:
            got = opener.open(request, timeout=job["request_s"])
        except urllib.error.HTTPError as error:
            got = error
        data = got.read(job["max_bytes"] + 1)
        answers.append([got.status, data[:job["max_bytes"] + 1].decode("utf-8", "replace")])
    except Exception as error:
        answers.append([0, type(error).__name__])
        break
print(json.dumps({"up": True, "answers": answers}))
"""


class Start(Record):
    """What the service is."""

    files: tuple[str, ...] = Field(min_length=1)
    """Paths in the episode's sandbox that are taken along."""
    start: tuple[str, ...] = Field(min_length=1)
    port: int = Field(gt=1023, lt=65536)


class ExpectedReply(Record):
    """One request, and what it must be answered with."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    path: str = Field(pattern=r"^/[^\s]*$")
    body: Json = None
    status: int = Field(default=200, ge=200, lt=600)
    json_: Json = Field(default=None, alias="json")
    text: str | None = None
    match: Literal["exact", "subset"] = "exact"

    @property
    def has_json(self) -> bool:
        """Whether a JSON answer is expected."""
        return "json_" in self.model_fields_set


class ExpectedService(Record):
    """What `Task.answer` says."""

    service: Start
    requests: tuple[ExpectedReply, ...] = Field(min_length=1, max_length=500)

    @model_validator(mode="after")
    def _answers(self) -> ExpectedService:
        if not any(reply.has_json or reply.text is not None for reply in self.requests):
            raise ValueError("at least one request expects json or text; a status proves little")
        return self


class Service:
    """Starts the episode's service in a clean room and compares its replies (see the module).

    Args:
        start_s: wall-clock seconds until it must listen.
        request_s: of one request.
        max_bytes: of one reply; a longer one is wrong.
        sandbox: the clean room, where the task names none.
        name: the verifier's name.

    Raises:
        ConfigError: a number is not positive.
    """

    def __init__(
        self,
        *,
        start_s: float = 20.0,
        request_s: float = 10.0,
        max_bytes: int = 1_000_000,
        sandbox: SandboxSpec | None = None,
        name: str = "service",
    ) -> None:
        if not (start_s > 0 and request_s > 0 and max_bytes > 0):
            raise ConfigError("start_s, request_s and max_bytes are positive")
        self.name = name
        self.kind: Kind = "formal"
        self.start_s = start_s
        self.request_s = request_s
        self.max_bytes = max_bytes
        self.sandbox = sandbox

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose expectation is malformed.

        Raises:
            TaskError: what is wrong with it.
        """
        expectation(task, ExpectedService, "service and requests")

    async def judge(self, context: JudgeContext) -> Verdict:
        """Every reply as expected, or not.

        Raises:
            TaskError: the expectation is at fault.
            VerifierError: the clean room or the probe could not be used.
        """
        began = time.monotonic()
        expected = expectation(context.task, ExpectedService, "service and requests")
        with boundary(VerifierError, f"verifier {self.name}"):
            files: dict[str, bytes] = {}
            checks: list[Check] = []
            for path in expected.service.files:
                data, why = await candidate_file(context, path, MAX_FILE_BYTES)
                if data is not None:
                    files[path] = data
                checks.append(Check(name=path, passed=data is not None, detail=why))
            if all(check.passed for check in checks):
                checks += await self._ask(context, expected, files)
        wrong = next((check for check in checks if not check.passed), None)
        return Verdict.of(
            wrong is None,
            f"{wrong.name}: {wrong.detail}" if wrong else "every reply is as expected",
            checks=tuple(checks),
        ).signed(self.name, self.kind, time.monotonic() - began)

    async def _ask(
        self, context: JudgeContext, expected: ExpectedService, files: dict[str, bytes]
    ) -> list[Check]:
        spec = context.task.sandbox or self.sandbox or SandboxSpec()
        most = self.max_bytes * min(len(expected.requests), 20) * 2 + 100_000
        room = await context.open_sandbox(spec.model_copy(update={"max_output_bytes": most}))
        running: asyncio.Task[Any] | None = None
        try:
            for path, data in files.items():
                await room.write(path, data)
            left = context.deadline - time.monotonic()
            running = asyncio.ensure_future(room.exec(expected.service.start, timeout_s=left))
            return await self._probe(context, room, expected)
        finally:
            await room.close()
            if running is not None:
                # It ends with its room; how does not matter.
                with contextlib.suppress(QuintainError, OSError):
                    await running

    async def _probe(
        self, context: JudgeContext, room: Sandbox, expected: ExpectedService
    ) -> list[Check]:
        asked = [
            reply.model_dump(include={"method", "path", "body"}) for reply in expected.requests
        ]
        job = {
            "port": expected.service.port,
            "start_s": self.start_s,
            "request_s": self.request_s,
            "max_bytes": self.max_bytes,
            "requests": asked,
        }
        own_s = self.start_s + self.request_s * len(asked) + 10
        left = context.deadline - time.monotonic()
        result = await room.exec(
            ["python3", "-I", "-c", PROBE], stdin=json.dumps(job), timeout_s=min(own_s, left)
        )
        if result.killed == "timeout" and left < own_s:
            raise VerifierError(f"{self.name}: the judge's deadline came before the requests' own")
        try:
            found = json.loads(result.stdout)
            up, answers = found["up"], found["answers"]
        except (ValueError, TypeError, KeyError):
            # The probe is of the service's user: one that kills it or floods it has not answered.
            ended = result.killed or f"exit code {result.exit_code}"
            return [Check(name="service", passed=False, detail=f"no replies ({ended})")]
        if not up:
            told = f"nothing listened on port {expected.service.port} within {self.start_s:g} s"
            return [Check(name="service", passed=False, detail=told)]
        checks = []
        for number, want in enumerate(expected.requests):
            why = self._wrong(want, answers[number]) if number < len(answers) else "not answered"
            name = f"request {number} {want.method} {want.path}"[:200]
            checks.append(Check(name=name, passed=not why, detail=why))
        return checks

    def _wrong(self, want: ExpectedReply, answer: Any) -> str:
        if not (isinstance(answer, list) and len(answer) == 2 and isinstance(answer[1], str)):
            return "an unreadable reply"
        status, text = answer
        if status != want.status:
            return f"status {status}, expected {want.status}" if status else f"failed: {text[:80]}"
        if len(text) > self.max_bytes:
            return f"more than {self.max_bytes} bytes"
        if want.text is not None:
            return "" if text.strip() == want.text.strip() else "another text"
        if not want.has_json:
            return ""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return "no JSON"
        return "" if matches(want.json_, found, subset=want.match == "subset") else "another value"
