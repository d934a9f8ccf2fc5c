"""Does the code pass hidden cases: functions and programs, judged from outside of their process.

The expected values never leave this process. The code goes into a clean room of its own; there a
runner (`runner.py`) forks one process per case, hands it one input and brings back bytes. Here the
bytes are read as plain data, type by type, and compared. So nothing that the candidate prints,
patches, writes, kills or returns can decide a case except by being its right answer: every case
needs an answer of its own, and a missing, late, doubled or unreadable one fails.

The reward is 1 for all cases, else 0; it stops at the first failure. The pass rate over the cases
that ran is only the `score`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import ExecResult, JudgeContext, Sandbox
from quintain.record import derive_seed
from quintain.task import SandboxSpec, Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers import runner_protocol as protocol
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.cases import (
    FunctionCase,
    Suite,
    checked_bytes,
    outputs_agree,
    values_agree,
)
from quintain.verifiers.fences import fenced_code
from quintain.verifiers.plain import NotPlain, from_task, pack, unpack
from quintain.verifiers.projects.judge import Limits, judge_project
from quintain.verifiers.projects.suite import Project, is_project

MAX_CODE_BYTES = 1_000_000
START_S = 30.0
"""Allowed to a chunk of cases beyond their own time, for starting the interpreter."""
CHUNK_S = 20.0
"""Expected wall time of one chunk, once the cases' own time is known."""


class _Case(NamedTuple):
    number: int
    """Its place in the task."""
    data: bytes


@dataclass(slots=True)
class _Tally:
    """What is known so far."""

    passed: int = 0
    ran: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    failure: Check | None = None
    unchecked: list[tuple[_Case, bytes]] = field(default_factory=list)
    """Answers that wait for the suite's checker."""

    def fail(self, case: _Case | None, why: str) -> None:
        name = "suite" if case is None else f"case {case.number}"
        self.failure = Check(name=name, passed=False, detail=why[:2000])


class Tests:
    """Runs the candidate's code on the hidden cases in `Task.answer` (see `cases`).

    Args:
        source: `text`: the last fenced Python block of the final message, or the whole message; or
            a path in the episode's sandbox (a kept artifact when that is gone).
        cpu_s: CPU seconds of one case; also the candidate's import of its own modules counts.
        wall_s: wall-clock backstop of one case; None: twice the CPU seconds and five.
        total_s: wall-clock seconds of all cases together; more fails the code.
        max_output_bytes: of one case; more fails it.
        sandbox: the clean room, where the task names none.
        python: the interpreter in the clean room.
        name: the verifier's name.

    Raises:
        ConfigError: a limit is not positive.
    """

    __test__ = False  # not a test class, whatever its name makes of it

    def __init__(
        self,
        *,
        source: str = "text",
        cpu_s: float = 10.0,
        wall_s: float | None = None,
        total_s: float = 120.0,
        max_output_bytes: int = 8_000_000,
        sandbox: SandboxSpec | None = None,
        python: str = "python3",
        name: str = "tests",
    ) -> None:
        limits = {"cpu_s": cpu_s, "wall_s": wall_s, "total_s": total_s}
        for option, value in (*limits.items(), ("max_output_bytes", max_output_bytes)):
            if value is not None and value <= 0:
                raise ConfigError(f"{option} is positive, got {value!r}")
        self.name = name
        self.kind: Kind = "formal"
        self.source = source
        self.cpu_s = cpu_s
        self.wall_s = wall_s if wall_s is not None else 2 * cpu_s + 5
        self.total_s = total_s
        self.max_output_bytes = max_output_bytes
        self.sandbox = sandbox
        self.python = python

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose suite is missing, empty or malformed.

        Raises:
            TaskError: what is wrong with it.
        """
        if is_project(task):
            Project.of(task)
        else:
            Suite.of(task)

    async def judge(self, context: JudgeContext) -> Verdict:
        """All cases right, or not.

        Raises:
            TaskError: the suite is at fault.
            VerifierError: the clean room could not run the runner.
            SandboxError: the clean room died.
        """
        began = time.monotonic()
        if is_project(context.task):
            return await self._judge_project(context, began)
        suite = Suite.of(context.task)
        with boundary(VerifierError, f"verifier {self.name}"):
            code, reason = await self._code(context, suite)
            tally = _Tally()
            if code is None:
                tally.fail(None, reason)
            else:
                await self._run(context, suite, code, tally)
        return self._verdict(suite, tally, time.monotonic() - began)

    async def _judge_project(self, context: JudgeContext, began: float) -> Verdict:
        project = Project.of(context.task)
        limits = Limits(self.cpu_s, self.wall_s, self.total_s, self.max_output_bytes)
        with boundary(VerifierError, f"verifier {self.name}"):
            outcome = await judge_project(
                context, project, self.source, limits, sandbox=self.sandbox, python=self.python
            )
        failure = outcome.failure
        passed = [check for check in outcome.checks if check.name in project.expected]
        score = sum(check.passed is True for check in passed) / len(project.expected)
        return Verdict.of(
            failure is None and len(passed) == len(project.expected),
            f"{failure.name}: {failure.detail}"
            if failure
            else f"all {len(project.expected)} tests passed",
            checks=tuple(outcome.checks),
            score=score,
            metrics={**outcome.metrics, "tests": float(len(project.expected))},
            flags=outcome.flags,
        ).signed(self.name, self.kind, time.monotonic() - began)

    def _verdict(self, suite: Suite, tally: _Tally, wall_s: float) -> Verdict:
        passed = tally.failure is None and tally.passed == len(suite.cases)
        checks = (Check(name="cases", passed=passed, detail=f"{tally.passed} passed"),)
        verdict = Verdict.of(
            passed,
            f"all {len(suite.cases)} cases passed"
            if passed
            else f"{tally.failure.name}: {tally.failure.detail}"
            if tally.failure
            else "not every case was answered",
            checks=(*checks, tally.failure) if tally.failure else checks,
            score=tally.passed / tally.ran if tally.ran else 0.0,
            metrics={
                "cases": float(len(suite.cases)),
                "cases_run": float(tally.ran),
                "cases_passed": float(tally.passed),
                "cpu_s": tally.cpu_s,
                "case_wall_s": tally.wall_s,
            },
        )
        return verdict.model_copy(
            update={"verifier": self.name, "kind": self.kind, "wall_s": wall_s}
        )

    # --- the candidate's code ---

    async def _code(self, context: JudgeContext, suite: Suite) -> tuple[str | None, str]:
        if self.source == "text":
            code = fenced_code(context.trajectory.text, defines=suite.entry_point)
            return (code, "") if code.strip() else (None, "the final message holds no code")
        data, why = await candidate_file(context, self.source, MAX_CODE_BYTES)
        if data is None:
            return None, f"{self.source}: {why}"
        try:
            return data.decode(), ""
        except UnicodeDecodeError as error:
            return None, f"{self.source} is not UTF-8: {error}"

    # --- the cases ---

    async def _run(self, context: JudgeContext, suite: Suite, code: str, tally: _Tally) -> None:
        cases = [_Case(number, _case_data(suite, number)) for number in range(len(suite.cases))]
        # The order is not the file's, so that no case can be known by its turn.
        order = derive_seed("tests", context.task.id, context.trajectory.seed)
        random.Random(order).shuffle(cases)
        spec = context.task.sandbox or self.sandbox or SandboxSpec()
        room_bytes = max(spec.max_output_bytes, 4 * self.max_output_bytes)
        spec = spec.model_copy(update={"max_output_bytes": room_bytes})
        room = await context.open_sandbox(spec)
        try:
            done = 0
            while done < len(cases) and tally.failure is None:
                chunk = cases[done : done + self._chunk_size(tally)]
                await self._run_chunk(context, suite, code, chunk, room, tally)
                if suite.checker is not None:
                    await self._check_answers(context, suite, suite.checker, tally)
                done = tally.passed
        finally:
            await room.close()

    def _chunk_size(self, tally: _Tally) -> int:
        """Few cases first, as most wrong code fails early; then what about fits in a chunk."""
        if not tally.ran:
            return protocol.FIRST_CHUNK
        each = max(tally.wall_s / tally.ran, 0.001)
        return max(1, min(protocol.MAX_CHUNK, int(CHUNK_S / each)))

    async def _run_chunk(
        self,
        context: JudgeContext,
        suite: Suite,
        code: str,
        chunk: Sequence[_Case],
        room: Sandbox,
        tally: _Tally,
    ) -> None:
        job = {
            "mode": suite.mode,
            "code": code,
            "entry_point": suite.entry_point,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "max_bytes": self.max_output_bytes,
            "total_bytes": room.spec.max_output_bytes - self.max_output_bytes - 4096,
        }
        frames = [json.dumps(job).encode(), *(case.data for case in chunk)]
        own_s = START_S + min(len(chunk) * self.wall_s, self.total_s - tally.wall_s + self.wall_s)
        left_s = context.deadline - time.monotonic()
        if left_s <= 0:
            raise VerifierError(f"{self.name}: no time is left; give the judge a later deadline")
        result = await room.exec(
            [self.python, "-I", "-c", protocol.SOURCE],
            stdin=b"".join(protocol.framed(frame) for frame in frames),
            timeout_s=min(own_s, left_s),
        )
        answers = protocol.read(result.stdout)
        if not answers or answers[0].status != protocol.READY:
            raise VerifierError(
                f"{self.name}: the runner did not start in the clean room "
                f"(exit code {result.exit_code}, {result.killed or 'not killed'}): "
                f"{result.error_text[-1000:]}"
            )
        for case, answer in zip(chunk, answers[1:], strict=False):
            if answer.status == protocol.PAUSED and case is not chunk[0]:
                return
            tally.ran += 1
            tally.cpu_s += answer.cpu_s
            tally.wall_s += answer.wall_s
            why = self._wrong(suite, case, answer)
            if why:
                tally.fail(case, why)
                return
            tally.passed += 1
            if suite.checker is not None:
                tally.unchecked.append((case, answer.data))
            if tally.wall_s > self.total_s:
                tally.fail(case, f"all cases together took more than {self.total_s:g} s")
                return
        self._account(chunk, answers, result, left_s < own_s, tally)

    async def _check_answers(
        self, context: JudgeContext, suite: Suite, checker: str, tally: _Tally
    ) -> None:
        """Asks the checker about the answers of a chunk, in a clean room of its own.

        Raises:
            TaskError: the checker refuses an expected value.
            VerifierError: its room could not run it.
        """
        waiting, tally.unchecked = tally.unchecked, []
        for place, (case, data) in enumerate(waiting):
            why = await self._checked(context, suite, checker, case, data)
            if why:
                tally.passed -= len(waiting) - place
                tally.fail(case, why)
                return

    async def _checked(
        self, context: JudgeContext, suite: Suite, checker: str, case: _Case, data: bytes
    ) -> str:
        declared = suite.cases[case.number]
        try:
            output = unpack(data) if isinstance(declared, FunctionCase) else data
            given, expected, said = checked_bytes(declared, output)
        except NotPlain as error:
            return str(error)
        job = {
            "mode": "function",
            "code": checker,
            "entry_point": "check",
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "max_bytes": self.max_output_bytes,
            "total_bytes": 1_000_000,
        }
        calls = ([given, expected, expected], [given, expected, said])
        frames = [json.dumps(job).encode(), *(json.dumps(pack(call)).encode() for call in calls)]
        left = context.deadline - time.monotonic()
        if left <= 0:
            raise VerifierError(f"{self.name}: no time is left for the checker")
        room = await context.open_sandbox(self.sandbox or SandboxSpec())
        try:
            result = await room.exec(
                [self.python, "-I", "-c", protocol.SOURCE],
                stdin=b"".join(protocol.framed(frame) for frame in frames),
                timeout_s=min(left, START_S + 2 * self.wall_s),
            )
        finally:
            await room.close()
        answers = protocol.read(result.stdout)
        if not answers:
            raise VerifierError(
                f"{self.name}: the checker did not start: {result.error_text[-500:]}"
            )
        words = [_said(answer) for answer in answers[1:]]
        if words[:1] != ["True"]:
            raise TaskError(
                f"task {context.task.id!r}: the checker does not accept what case {case.number} "
                f"expects: {' '.join(words[:1])[-300:]}"
            )
        if words[1:] == ["True"]:
            return ""
        return f"the checker says {' '.join(words[1:])[-300:] or 'nothing'}"

    def _account(
        self,
        chunk: Sequence[_Case],
        answers: Sequence[protocol.Answer],
        result: ExecResult,
        short: bool,
        tally: _Tally,
    ) -> None:
        """Every case has one answer, or the candidate has ended the runner."""
        received = len(answers) - 1
        if received == len(chunk) and result.ok:
            return
        if result.killed == "timeout" and short:
            raise VerifierError(
                f"{self.name}: the judge's deadline came before the cases' own limits did; "
                "give it a later one"
            )
        if received > len(chunk):
            tally.fail(None, f"{received} answers to {len(chunk)} cases")
        elif received < len(chunk):
            ended = result.killed or f"exit code {result.exit_code}"
            tally.ran += 1
            tally.fail(chunk[received], f"no answer: the runner was ended ({ended})")
        else:
            tally.fail(None, f"the runner did not end by itself ({result.killed or 'failed'})")

    def _wrong(self, suite: Suite, case: _Case, answer: protocol.Answer) -> str:
        """Why an answer does not pass; empty when it does."""
        if answer.status != protocol.ANSWERED:
            said = answer.data.decode("utf-8", "replace").strip()
            reason = protocol.REASONS.get(answer.status, "no answer")
            return f"{reason} (exit code {answer.exit_code}): {said}" if said else reason
        expected = suite.cases[case.number]
        if suite.checker is not None:
            return ""
        if isinstance(expected, FunctionCase):
            try:
                value = unpack(answer.data)
            except NotPlain as error:
                return str(error)
            right = values_agree(suite, expected, value)
        else:
            right = outputs_agree(suite, expected, answer.data)
        return "" if right else "a wrong answer"


def _said(answer: protocol.Answer) -> str:
    """What a checker returned; why it did not."""
    if answer.status != protocol.ANSWERED:
        said = answer.data.decode("utf-8", "replace").strip()
        return f"{protocol.REASONS.get(answer.status, 'no answer')}: {said}"
    try:
        return repr(unpack(answer.data))
    except NotPlain as error:
        return str(error)


def _case_data(suite: Suite, number: int) -> bytes:
    case = suite.cases[number]
    if isinstance(case, FunctionCase):
        return json.dumps(pack(from_task(case.input))).encode()
    return case.stdin.encode()
