"""Coverage and mutation score of a suite: line coverage of the reference, mutants that pass.

A line that no case runs is not tested, and a wrong program that passes every case is one that
training can find. A mutant is judged by the `tests` verifier itself, and caught when it earns no
reward. For one that survives, inputs like the suite's own are tried; one on which it differs from
the reference is a case to add.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Protocol

from quintain.errors import TaskError, VerifierError
from quintain.messages import assistant
from quintain.protocols import JudgeContext, Sandbox, Workers
from quintain.record import Json
from quintain.task import SandboxSpec, Task
from quintain.trajectory import Action, Observation, Step, StopReason, Trajectory
from quintain.verdict import Verdict
from quintain.verifiers import runner_protocol as protocol
from quintain.verifiers import shipped
from quintain.verifiers.cases import Suite
from quintain.verifiers.plain import NotPlain, from_task, pack, to_task, unpack
from quintain.verifiers.projects.suite import is_project
from quintain.verifiers.quality import traced
from quintain.verifiers.quality.mutants import Mutant, draw
from quintain.verifiers.quality.variations import variations
from quintain.verifiers.tests import START_S, Tests

MIN_COVERAGE = 0.9
"""Smallest share of the reference's lines that a suite must run to train with it."""
MUTANTS = 30
VARIATIONS = 60
TRACED = 50.0
"""How many times slower than bare code traced code may be."""
AT_ONCE = 4
_TOOLS = "/tmp/quality"
_UNPACK = f"import zipfile; zipfile.ZipFile('{_TOOLS}.zip').extractall('{_TOOLS}')"


class Rooms(Protocol):
    """Where the code runs; a `Host` is one."""

    @property
    def workers(self) -> Workers:
        """Killable processes."""
        ...

    async def open_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """A clean room."""
        ...


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant that passes every case."""

    line: int
    operator: str
    diff: str
    case: Json = None
    """A case in the suite's notation that would catch it; None: no tried input told it from the
    reference, so it may mean the same."""
    assertion: str = ""
    """The same case as a line of Python; empty without one."""

    @property
    def change(self) -> str:
        """The change in one line."""
        lines = self.diff.splitlines()
        old = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
        new = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
        return f"`{old}` as `{new}`"


@dataclass(frozen=True, slots=True)
class SuiteQuality:
    """What a suite runs of its reference, and which changes of it go unseen."""

    task_id: str
    statements: int
    missing: tuple[int, ...]
    """Lines of the reference that no case runs."""
    mutants: int
    """Tried; a sample of all that there are."""
    survivors: tuple[Survivor, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the reference's statements that some case runs."""
        return 1 - len(self.missing) / self.statements if self.statements else 1.0

    @property
    def mutation_score(self) -> float:
        """Share of the tried mutants that some case catches; NaN when none was tried."""
        return 1 - len(self.survivors) / self.mutants if self.mutants else float("nan")

    def problems(self, min_coverage: float = MIN_COVERAGE) -> list[str]:
        """Why the suite is too weak to train with; empty when it is not.

        Args:
            min_coverage: smallest share of the reference's lines that it must run.
        """
        if self.coverage >= min_coverage:
            return []
        lines = ", ".join(map(str, self.missing[:10])) + (", …" if self.missing[10:] else "")
        return [
            f"the suite of {self.task_id} runs {self.coverage:.0%} of its reference, less than "
            f"{min_coverage:.0%}: not lines {lines}"
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            **asdict(self),
            "missing": list(self.missing),
            "survivors": [asdict(each) for each in self.survivors],
            "coverage": self.coverage,
            "mutation_score": self.mutation_score if self.mutants else None,
        }

    def __str__(self) -> str:
        killed = self.mutants - len(self.survivors)
        changes = f"{killed} of {self.mutants} mutants caught" if self.mutants else "no mutants"
        return f"{self.coverage:.0%} of {self.statements} lines, {changes}"


async def suite_quality(
    task: Task,
    reference: str,
    rooms: Rooms,
    *,
    verifier: Tests | None = None,
    mutants: int = MUTANTS,
    inputs: int = VARIATIONS,
    seed: int = 0,
) -> SuiteQuality:
    """Measures the suite in a task's answer by a right solution.

    Args:
        task: of the `tests` verifier, with hidden cases of a function or a program.
        reference: Python source of a solution that passes.
        rooms: opens the clean rooms.
        verifier: whose limits and interpreter count; None: one with the defaults.
        mutants: how many at most; 0: only coverage is measured.
        inputs: tried on the mutants that survive.
        seed: of the sample of mutants and of the inputs.

    Raises:
        ConfigError: the extra `audit` is not installed.
        TaskError: the suite is malformed, of a project, or fails the reference.
        VerifierError: the reference cannot be traced.
        SandboxError: a clean room died.
    """
    if is_project(task):
        raise TaskError(f"task {task.id!r}: the suite of a project is not measured")
    bench = _Bench(task, Suite.of(task), rooms, copy.copy(verifier or Tests()))
    bench.tests.source = "text"
    cpu_s = await bench.settle(reference)
    statements, missing = await bench.trace(reference, cpu_s)
    tried = draw(reference, mutants, seed) if mutants else []
    verdicts = await bench.verdicts(task, tried)
    alive = [m for m, verdict in zip(tried, verdicts, strict=True) if verdict.passed]
    survivors = await bench.caught(reference, alive, variations(bench.suite, inputs, seed))
    return SuiteQuality(task.id, len(statements), tuple(missing), len(tried), tuple(survivors))


@dataclass(slots=True)
class _Bench:
    """One suite, and the verifier that runs code on it."""

    task: Task
    suite: Suite
    rooms: Rooms
    tests: Tests

    async def judge(self, task: Task, code: str) -> Verdict:
        """The verdict on code as the final message."""
        said = Step(action=Action(message=assistant(code)), observation=Observation())
        trajectory = Trajectory(
            environment="suite",
            task_id=task.id,
            policy="scripted",
            purpose="audit:suite",
            opening=Observation(messages=task.prompt),
            steps=(said,),
            stop=StopReason.DONE,
        )
        allowed_s = 2 * (self.tests.total_s + self.tests.wall_s) + 60.0
        return await self.tests.judge(
            JudgeContext(
                task=task,
                trajectory=trajectory,
                sandbox=None,
                open_sandbox=self.rooms.open_sandbox,
                workers=self.rooms.workers,
                deadline=time.monotonic() + allowed_s,
            )
        )

    async def verdicts(self, task: Task, codes: Sequence[Mutant]) -> list[Verdict]:
        """Those on mutants, a few at once."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(code: str) -> Verdict:
            async with gate:
                return await self.judge(task, code)

        return await asyncio.gather(*(one(mutant.code) for mutant in codes))

    async def settle(self, reference: str) -> float:
        """Checks that the reference passes, and keeps mutants near its time; its CPU seconds."""
        verdict = await self.judge(self.task, reference)
        if not verdict.passed:
            raise TaskError(
                f"task {self.task.id!r}: its suite fails the reference: {verdict.explanation}"
            )
        took = verdict.metrics["cpu_s"]
        self.tests.cpu_s = min(self.tests.cpu_s, max(1.0, 5 * took))
        return took

    async def trace(self, reference: str, cpu_s: float) -> tuple[list[int], list[int]]:
        """The reference's statements, and those that no case runs."""
        inputs = [self._argument(case) for case in self.suite.cases]
        call = [_TOOLS, reference, self.suite.entry_point, inputs]
        source = inspect.getsource(traced)
        room = await self._open()
        try:
            await room.write(f"{_TOOLS}.zip", await asyncio.to_thread(_tools))
            result = await room.exec([self.tests.python, "-I", "-c", _UNPACK], timeout_s=START_S)
            if result.exit_code != 0:
                raise VerifierError(f"coverage.py cannot be unpacked: {result.error_text[-500:]}")
            limit = max(30.0, TRACED * cpu_s)
            answers = await self._run(room, source, "trace", [json.dumps(pack(call))], limit)
        finally:
            await room.close()
        if len(answers) != 1 or answers[0].status != protocol.ANSWERED:
            told = answers[0].data.decode("utf-8", "replace") if answers else "the room ended"
            raise VerifierError(f"task {self.task.id!r}: no trace of the reference: {told[-500:]}")
        statements, missing = unpack(answers[0].data)
        return statements, missing

    async def caught(
        self, reference: str, alive: Sequence[Mutant], inputs: Sequence[Json]
    ) -> list[Survivor]:
        """The mutants, each with a case on which it differs from the reference if one is found."""
        more = await self._more_cases(reference, inputs) if alive else None
        if more is None:
            return [Survivor(m.line, m.operator, m.diff) for m in alive]
        verdicts = await self.verdicts(more, alive)
        out = []
        for mutant, verdict in zip(alive, verdicts, strict=True):
            failed = [
                c.name.partition(" ")[2] for c in verdict.checks if c.name.startswith("case ")
            ]
            case = more.answer["cases"][int(failed[0])] if failed else None
            shown = self._assertion(case) if case is not None else ""
            out.append(Survivor(mutant.line, mutant.operator, mutant.diff, case, shown))
        return out

    async def _more_cases(self, reference: str, inputs: Sequence[Json]) -> Task | None:
        """The task with other cases: those inputs, and what the reference makes of them."""
        answer = {**self.task.answer, "allow_empty": True}
        cases = []
        for case in await self._outputs(reference, inputs):
            try:
                Suite.of(self.task.model_copy(update={"answer": {**answer, "cases": [case]}}))
            except TaskError:
                continue
            cases.append(case)
        if not cases:
            return None
        task = self.task.model_copy(update={"answer": {**answer, "cases": cases}})
        # What the reference itself does not do twice says nothing about a mutant.
        return task if (await self.judge(task, reference)).passed else None

    async def _outputs(self, reference: str, inputs: Sequence[Json]) -> list[dict[str, Json]]:
        """Cases of the inputs that the reference answers."""
        cases: list[dict[str, Json]] = []
        left = list(inputs)
        room = await self._open()
        try:
            while left:
                frames = [_frame(given) for given in left]
                answers = await self._run(
                    room, reference, self.suite.entry_point, frames, self.tests.cpu_s
                )
                if not answers:
                    break
                for given, answer in zip(left, answers, strict=False):
                    case = _case(given, answer)
                    if case is not None:
                        cases.append(case)
                left = left[len(answers) :]
        finally:
            await room.close()
        return cases

    async def _open(self) -> Sandbox:
        return await self.rooms.open_sandbox(
            self.task.sandbox or self.tests.sandbox or SandboxSpec()
        )

    async def _run(
        self, room: Sandbox, code: str, entry: str | None, cases: Sequence[str], cpu_s: float
    ) -> list[protocol.Answer]:
        """The runner's answers, up to the first case that has none."""
        wall_s = 2 * cpu_s + self.tests.wall_s
        job = {
            "mode": "stdin" if entry is None else "function",
            "code": code,
            "entry_point": entry,
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "max_bytes": self.tests.max_output_bytes,
            "total_bytes": room.spec.max_output_bytes // 2,
        }
        frames = [json.dumps(job), *cases]
        result = await room.exec(
            [self.tests.python, "-I", "-c", protocol.SOURCE],
            stdin=b"".join(protocol.framed(frame.encode()) for frame in frames),
            timeout_s=START_S + wall_s + self.tests.total_s,
        )
        answers = protocol.read(result.stdout)
        if not answers:
            raise VerifierError(f"the runner did not start: {result.error_text[-500:]}")
        return [answer for answer in answers[1:] if answer.status != protocol.PAUSED]

    def _argument(self, case: Any) -> Any:
        return case.stdin if self.suite.entry_point is None else from_task(case.input)

    def _assertion(self, case: dict[str, Any]) -> str:
        if self.suite.entry_point is None:
            return f"assert run({case['stdin']!r}) == {case['stdout']!r}"
        arguments = ", ".join(repr(from_task(value)) for value in case["input"])
        return f"assert {self.suite.entry_point}({arguments}) == {from_task(case['expected'])!r}"


def _frame(given: Json) -> str:
    return given if isinstance(given, str) else json.dumps(pack(from_task(given)))


def _case(given: Json, answer: protocol.Answer) -> dict[str, Json] | None:
    """A case of an input and the reference's answer; None: it has none that can be written."""
    if answer.status != protocol.ANSWERED:
        return None
    try:
        if isinstance(given, str):
            return {"stdin": given, "stdout": answer.data.decode()}
        return {"input": given, "expected": to_task(unpack(answer.data))}
    except (NotPlain, UnicodeDecodeError):
        return None


@cache
def _tools() -> bytes:
    """Coverage.py as a ZIP file; its compiled part serves where the room's Python is this one."""
    return shipped.archive(shipped.distributions("coverage", "audit"), {})
