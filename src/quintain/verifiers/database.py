"""Are the rows right in a SQLite file that an episode left.

The file is the candidate's and may be hostile: it is read out of the episode's sandbox as bytes
and opened in a clean room, read-only, under the walls of `query_runner`. The queries are the task's
own; the expected rows stay outside.

`Task.answer` is

    {"database": "app.db", "queries": [{"query": "SELECT name FROM users", "rows": [["ada"]]}]}
"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

from pydantic import Field

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import JudgeContext, Sandbox
from quintain.record import Json, Record
from quintain.task import SandboxSpec, Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers import query_runner
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.cases import Tolerance
from quintain.verifiers.result_sets import FLOAT_REL, ResultSet, difference
from quintain.verifiers.state import expectation

MAX_ROWS = 10_000
SOURCE = Path(query_runner.__file__).read_text(encoding="utf-8")


class ExpectedRows(Record):
    """One query and what it must give."""

    query: str = Field(min_length=1)
    rows: list[list[Json]]
    """`{"$bytes": "hex"}` for bytes."""
    ordered: bool = False
    tolerance: Tolerance = Tolerance(rel=FLOAT_REL)


class ExpectedDatabase(Record):
    """What `Task.answer` says."""

    database: str = Field(min_length=1)
    """Path of the file in the episode's sandbox."""
    queries: tuple[ExpectedRows, ...] = Field(min_length=1)


class Database:
    """Compares rows of a SQLite file in the episode's sandbox with those in `Task.answer`.

    A write-ahead log beside the file is taken along. Without the sandbox the kept artifact is read.

    Args:
        cpu_s: CPU seconds of one query.
        max_bytes: of the file and of its log each; a longer one is wrong.
        sandbox: the clean room; None: the default spec.
        python: the interpreter there.
        name: the verifier's name.

    Raises:
        ConfigError: a number is not positive.
    """

    def __init__(
        self,
        *,
        cpu_s: float = 5.0,
        max_bytes: int = 50_000_000,
        sandbox: SandboxSpec | None = None,
        python: str = "python3",
        name: str = "database",
    ) -> None:
        if not (cpu_s > 0 and max_bytes > 0):
            raise ConfigError("cpu_s and max_bytes are positive")
        self.name = name
        self.kind: Kind = "formal"
        self.cpu_s = cpu_s
        self.max_bytes = max_bytes
        self.sandbox = sandbox or SandboxSpec()
        self.python = python

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose expectation is malformed.

        Raises:
            TaskError: what is wrong with it.
        """
        expectation(task, ExpectedDatabase, "database and queries")

    async def judge(self, context: JudgeContext) -> Verdict:
        """The expected rows for every query, or not.

        Raises:
            TaskError: the expectation is at fault.
            VerifierError: the clean room could not be used.
        """
        began = time.monotonic()
        expected = expectation(context.task, ExpectedDatabase, "database and queries")
        with boundary(VerifierError, f"verifier {self.name}"):
            data, why = await candidate_file(context, expected.database, self.max_bytes)
            why = why or ("" if data else "empty")
            checks = [Check(name=expected.database, passed=not why, detail=why)]
            if data is not None and not why:
                wal, _ = await candidate_file(context, f"{expected.database}-wal", self.max_bytes)
                checks += await self._ask(context, expected, data, wal)
        wrong = next((check for check in checks if not check.passed), None)
        return Verdict.of(
            wrong is None,
            f"{wrong.name}: {wrong.detail}" if wrong else "the rows are as expected",
            checks=tuple(checks),
        ).signed(self.name, self.kind, time.monotonic() - began)

    async def _ask(
        self, context: JudgeContext, expected: ExpectedDatabase, data: bytes, wal: bytes | None
    ) -> list[Check]:
        spec = self.sandbox.model_copy(update={"max_output_bytes": 30_000_000})
        room = await context.open_sandbox(spec)
        checks = []
        try:
            for number, want in enumerate(expected.queries):
                why = await self._wrong(context, room, want, data, wal)
                checks.append(Check(name=f"query {number}", passed=not why, detail=why))
                if why:
                    break
        finally:
            await room.close()
        return checks

    async def _wrong(
        self,
        context: JudgeContext,
        room: Sandbox,
        want: ExpectedRows,
        data: bytes,
        wal: bytes | None,
    ) -> str:
        job = {
            "engine": "sqlite",
            "data": base64.b64encode(data).decode(),
            "wal": None if wal is None else base64.b64encode(wal).decode(),
            "query": want.query,
            "cpu_s": self.cpu_s,
            "max_rows": MAX_ROWS,
            "max_bytes": 10_000_000,
            "walls": True,
        }
        left = context.deadline - time.monotonic()
        if left <= 0:
            raise VerifierError(f"{self.name}: no time is left; give the judge a later deadline")
        most = 4 * self.cpu_s + 20
        result = await room.exec(
            [self.python, "-I", "-c", SOURCE], stdin=json.dumps(job), timeout_s=min(left, most)
        )
        if result.killed == "timeout" and left < most:
            raise VerifierError(f"{self.name}: the judge's deadline came before the query's limit")
        if not result.ok:
            # The file made it fail: nothing else in the room is the candidate's.
            return f"the file cannot be read ({result.killed or result.error_text[-200:]})"
        try:
            outcome = json.loads(result.stdout)
            if "error" in outcome:
                if "syntax error" in outcome["error"]:
                    raise TaskError(f"task {context.task.id!r}: {outcome['error']}")
                return str(outcome["error"])
            found = ResultSet.read(outcome)
        except ValueError as error:
            if isinstance(error, TaskError):
                raise
            raise VerifierError(f"{self.name}: the clean room answered with no result") from error
        return difference(
            ResultSet.of_rows(want.rows),
            found,
            ordered=want.ordered,
            rel=want.tolerance.rel,
            absolute=want.tolerance.abs,
        )
