"""Does a query give the right rows: on every hidden database, read-only, under walls.

The candidate's query runs on each of the task's databases in a killable worker (`query_runner`),
and what it gives is compared with what the gold query gives there. The gold's rows never enter the
process that runs the candidate's query. A query that writes constants is caught because the
databases give different answers: there are at least two, and the task is refused where their
answers are all the same or empty, unless it says so.

`Task.answer` is

    {"query": "SELECT name FROM users WHERE age > 30",
     "databases": [{"setup": "CREATE TABLE users …; INSERT …"}, {"setup": "…"}]}

with optional `engine` ("sqlite", "duckdb"), `ordered`, `names`, `tolerance` ({"rel", "abs"}), and
the declarations `single_database`, `same_results` and `allow_empty`. A database may also be
`{"file": name}`, a SQLite file among the task's hidden files.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import JudgeContext
from quintain.record import Record, digest
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers import query_runner
from quintain.verifiers.cases import Tolerance
from quintain.verifiers.result_sets import FLOAT_REL, ResultSet, difference
from quintain.verifiers.workers import BudgetExceeded

MAX_QUERY_CHARS = 100_000
MAX_BYTES = 20_000_000
"""Of one result, and of one value."""
GOLDS_KEPT = 256
_FENCE = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class Database(Record):
    """One hidden database."""

    setup: str = ""
    """SQL that makes it, trusted."""
    file: str | None = None
    """The name of a SQLite file in `Task.hidden_files`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Database:
        if bool(self.setup.strip()) == (self.file is not None):
            raise ValueError("a database has either a setup or a file")
        return self


class Question(Record):
    """What `Task.answer` says."""

    query: str = Field(min_length=1)
    """The gold query."""
    databases: tuple[Database, ...] = Field(min_length=1)
    engine: Literal["sqlite", "duckdb"] = "sqlite"
    ordered: bool = False
    """Whether the order of the rows counts; the gold then orders them without ties."""
    names: bool = False
    """Whether the columns' names count."""
    tolerance: Tolerance = Tolerance(rel=FLOAT_REL)
    max_rows: int = Field(default=10_000, gt=0, le=1_000_000)
    single_database: bool = False
    """One database is enough: a query that writes the rows down as constants passes."""
    same_results: bool = False
    """The gold gives the same rows everywhere; the same holds."""
    allow_empty: bool = False
    """The gold may give no rows: a query that finds nothing passes there."""

    @model_validator(mode="after")
    def _enough(self) -> Question:
        if len(self.databases) < 2 and not self.single_database:
            raise ValueError("on one database constants pass; give two, or declare single_database")
        if self.engine != "sqlite" and any(base.file for base in self.databases):
            raise ValueError("files are for the engine 'sqlite'")
        return self

    @classmethod
    def of(cls, task: Task) -> Question:
        """The question of a task.

        Raises:
            TaskError: it is missing or malformed.
        """
        if not isinstance(task.answer, dict):
            raise TaskError(
                f"task {task.id!r}: expected an answer with 'query' and 'databases', "
                f"got {task.answer!r:.100}"
            )
        try:
            question = cls.model_validate(task.answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise TaskError(f"task {task.id!r}: answer {where}: {first['msg']}") from error
        for base in question.databases:
            if base.file is not None and base.file not in task.hidden_files:
                raise TaskError(f"task {task.id!r}: no hidden file {base.file!r}")
        if question.engine == "duckdb" and find_spec("duckdb") is None:
            raise ConfigError("the engine 'duckdb' needs duckdb: pip install 'quintain[sql]'")
        return question


class Sql:
    """Runs the query in the last message on the hidden databases (see the module).

    The query is the last fenced block of SQL, else of no language, else the whole message.

    Args:
        cpu_s: CPU seconds of one query on one database; more fails it.
        name: the verifier's name.

    Raises:
        ConfigError: the budget is not positive.
    """

    def __init__(self, *, cpu_s: float = 5.0, name: str = "sql") -> None:
        if not cpu_s > 0:
            raise ConfigError(f"cpu_s is positive, got {cpu_s!r}")
        self.name = name
        self.kind: Kind = "formal"
        self.cpu_s = cpu_s
        self._golds: OrderedDict[str, list[ResultSet]] = OrderedDict()

    # --- the gold ---

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose gold cannot be told from constants, or does not run.

        Raises:
            TaskError: what is wrong with it.
            ConfigError: the engine is not installed.
        """
        question = Question.of(task)
        key = digest(task.answer, *sorted(task.hidden_files.items()))
        if key in self._golds:
            return
        outcomes = [
            query_runner.run(_job(task, question, place, question.query, self.cpu_s, walls=False))
            for place in range(len(question.databases))
        ]
        self._keep(key, _gold(task, question, outcomes))

    def _keep(self, key: str, golds: list[ResultSet]) -> None:
        self._golds[key] = golds
        while len(self._golds) > GOLDS_KEPT:
            self._golds.popitem(last=False)

    async def _gold_of(self, context: JudgeContext, question: Question) -> list[ResultSet]:
        task = context.task
        key = digest(task.answer, *sorted(task.hidden_files.items()))
        if key not in self._golds:
            outcomes = []
            for place in range(len(question.databases)):
                try:
                    outcomes.append(await self._run(context, question, place, question.query))
                except BudgetExceeded as error:
                    raise TaskError(f"task {task.id!r}: the gold query: {error}") from error
            self._keep(key, _gold(task, question, outcomes))
        self._golds.move_to_end(key)
        return self._golds[key]

    # --- the verdict ---

    async def judge(self, context: JudgeContext) -> Verdict:
        """The right rows on every database, or not.

        Raises:
            TaskError: the question or its gold is at fault.
            VerifierError: a worker was lost, or time ran out by the clock.
        """
        began = time.monotonic()
        question = Question.of(context.task)
        with boundary(VerifierError, f"verifier {self.name}"):
            golds = await self._gold_of(context, question)
            query = written_query(context.trajectory.text)
            checks: list[Check] = []
            for place, gold in enumerate(golds):
                why = await self._wrong(context, question, place, gold, query)
                checks.append(Check(name=f"database {place}", passed=not why, detail=why))
                if why:
                    break
        why = checks[-1].detail
        return Verdict.of(
            not why,
            f"{checks[-1].name}: {why}" if why else f"right on {len(checks)} databases",
            checks=tuple(checks),
            score=sum(bool(check.passed) for check in checks) / len(golds),
        ).signed(self.name, self.kind, time.monotonic() - began)

    async def _wrong(
        self, context: JudgeContext, question: Question, place: int, gold: ResultSet, query: str
    ) -> str:
        if not query:
            return "the message holds no query"
        if len(query) > MAX_QUERY_CHARS:
            return f"the query has more than {MAX_QUERY_CHARS} characters"
        try:
            outcome = await self._run(context, question, place, query)
        except BudgetExceeded as error:
            if error.budget != "cpu":
                raise
            return "over the CPU limit"
        if "error" in outcome:
            if outcome["stage"] == "setup":
                raise TaskError(f"task {context.task.id!r}: setup: {outcome['error']}")
            return str(outcome["error"])
        return difference(
            gold,
            ResultSet.read(outcome),
            ordered=question.ordered,
            names=question.names,
            rel=question.tolerance.rel,
            absolute=question.tolerance.abs,
        )

    async def _run(
        self, context: JudgeContext, question: Question, place: int, query: str
    ) -> dict[str, Any]:
        job = _job(context.task, question, place, query, self.cpu_s, walls=True)
        left = max(context.deadline - time.monotonic(), 0.001)
        try:
            text = await context.workers.run(
                _runner(question.engine), json.dumps(job), cpu_s=self.cpu_s + 1.0, wall_s=left
            )
        except MemoryError:
            return {"error": "out of memory", "stage": "query"}
        outcome: dict[str, Any] = json.loads(text)
        return outcome


def _runner(engine: str) -> Callable[[str], str]:
    if engine == "sqlite":
        return query_runner.run_text
    from quintain.verifiers import duckdb_runner

    return duckdb_runner.run_text


def _job(
    task: Task, question: Question, place: int, query: str, cpu_s: float, *, walls: bool
) -> dict[str, Any]:
    base = question.databases[place]
    data = None if base.file is None else base64.b64encode(task.hidden_files[base.file]).decode()
    return {
        "engine": question.engine,
        "setup": base.setup,
        "data": data,
        "query": query,
        "cpu_s": cpu_s,
        "max_rows": question.max_rows,
        "max_bytes": MAX_BYTES,
        "walls": walls,
    }


def _gold(task: Task, question: Question, outcomes: list[dict[str, Any]]) -> list[ResultSet]:
    """The gold's results, if a query of constants cannot give them all."""
    golds = []
    for place, outcome in enumerate(outcomes):
        if "error" in outcome:
            raise TaskError(
                f"task {task.id!r}: database {place}, {outcome['stage']}: {outcome['error']}"
            )
        golds.append(ResultSet.read(outcome))
    for place, gold in enumerate(golds):
        if not gold.rows and not question.allow_empty:
            raise TaskError(
                f"task {task.id!r}: the gold finds nothing in database {place}, as any wrong "
                "query might; change it, or declare allow_empty"
            )
        if difference(gold, gold):
            raise TaskError(
                f"task {task.id!r}: the gold's rows do not equal themselves in database {place}"
            )
    alike = all(not difference(golds[0], gold) for gold in golds[1:])
    if len(golds) > 1 and alike and not question.same_results:
        raise TaskError(
            f"task {task.id!r}: the gold gives the same rows in every database, and so do "
            "constants; change one, or declare same_results"
        )
    return golds


def written_query(text: str) -> str:
    """The query in a message: the last fenced block of SQL, else of no language, else all of it."""
    blocks = _FENCE.findall(text)
    for languages in (("sql", "sqlite", "duckdb"), ("",)):
        found = [body for language, body in blocks if language.lower() in languages]
        if found:
            return str(found[-1]).strip()
    return text.strip()
