"""Runs one query on one database under walls: what a judge's worker or clean room executes.

Standard library only (and duckdb where that is asked for), so that its text can run in a sandbox:
`python3 -I -c TEXT` reads a job as JSON and writes the outcome as JSON. The query may be hostile
(a candidate's) or the database file may be (a candidate's); either way it gets

- one statement that reads: an authorizer (SQLite), the statement's type and a read-only transaction
  (DuckDB) refuse everything else;
- no files, no extensions, no configuration: in memory, external access off, and no descriptor can
  be opened while it runs;
- a bound on CPU time, rows and bytes.

An outcome is `{"columns": […], "rows": [[cell, …]]}`, or `{"error": why, "stage": where}`.
Cells are tagged where JSON has no such value: see `_cell`.
"""

import base64
import contextlib
import json
import os
import resource
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Job = dict[str, Any]
REFUSED = frozenset(
    (
        "load_extension",
        "fts3_tokenizer",
        "readfile",
        "writefile",
        "edit",
        "random",
        "randomblob",
        "sqlite_log",
    )
)
"""SQL functions that reach out, or that would let a query guess."""
LIMITS = {
    "SQLITE_LIMIT_SQL_LENGTH": 200_000,
    "SQLITE_LIMIT_EXPR_DEPTH": 500,
    "SQLITE_LIMIT_COMPOUND_SELECT": 200,
    "SQLITE_LIMIT_ATTACHED": 0,
    "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000,
    "SQLITE_LIMIT_TRIGGER_DEPTH": 10,
    "SQLITE_LIMIT_WORKER_THREADS": 0,
}
STEPS = 20_000
"""SQLite's instructions between two looks at the clock."""


def run(job: Job) -> dict[str, Any]:
    """Carries out a job.

    Args:
        job: `engine` ("sqlite" or "duckdb"), `setup` (SQL, trusted) or `data` and `wal` (a SQLite
            file in base64), `query`, `cpu_s`, `max_rows`, `max_bytes`, and `walls`: whether this
            process serves nothing else and may be shut in.
    """
    stage = "setup"
    try:
        connect = {"sqlite": _sqlite, "duckdb": _duckdb}[job["engine"]]
        with connect(job) as (execute, names):
            stage = "query"
            with _no_new_files() if job["walls"] else contextlib.nullcontext():
                return _fetched(execute(job["query"]), names, job)
    except _Refused as error:
        return {"error": str(error), "stage": stage}
    except MemoryError:
        return {"error": "out of memory", "stage": stage}
    except Exception as error:  # whatever an engine raises is the query's outcome
        return {"error": f"{type(error).__name__}: {str(error)[:500]}", "stage": stage}


class _Refused(Exception):
    """The query does what none may, or too much of it."""


def _fetched(cursor: Any, names: Callable[[Any], list[str]], job: Job) -> dict[str, Any]:
    rows: list[list[Any]] = []
    size = 0
    while len(rows) <= job["max_rows"]:
        row = cursor.fetchone()
        if row is None:
            return {"columns": names(cursor), "rows": rows}
        cells = [_cell(value, 0) for value in row]
        size += len(json.dumps(cells))
        if size > job["max_bytes"]:
            raise _Refused(f"more than {job['max_bytes']} bytes of results")
        rows.append(cells)
    raise _Refused(f"more than {job['max_rows']} rows")


def _cell(value: Any, depth: int) -> Any:
    """A value in JSON, tagged where JSON has no such value.

    None, booleans and text stay as they are; else `{"i": int}`, `{"f": hex}`, `{"b": hex}`,
    `{"n": decimal}`, `{"l": […]}`, `{"m": [[key, value], …]}`, `{"o": [type, text]}`.
    """
    if depth > 20:
        raise _Refused("a value is nested too deeply")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return {"i": str(value)}
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"b": bytes(value).hex()}
    if isinstance(value, (list, tuple)):
        return {"l": [_cell(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {"m": [[_cell(k, depth + 1), _cell(v, depth + 1)] for k, v in value.items()]}
    kind = type(value).__name__
    if kind == "Decimal":
        return {"n": str(value)}
    told = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return {"o": [kind, told]}


@contextlib.contextmanager
def _no_new_files() -> Iterator[None]:
    """No descriptor can be opened meanwhile, neither to read nor to write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- SQLite ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _sqlite(job: Job) -> Iterator[Any]:
    connection = _given(job) if job.get("data") else sqlite3.connect(":memory:")
    try:
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        if job.get("setup"):
            connection.executescript(job["setup"])
            connection.commit()
        for pragma in ("query_only=ON", "trusted_schema=OFF", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        if hasattr(connection, "setlimit"):
            for name, value in LIMITS.items():
                connection.setlimit(getattr(sqlite3, name), value)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, job["max_bytes"])
        refusals: list[str] = []
        connection.set_authorizer(_authorizer(refusals))
        limit = time.process_time() + job["cpu_s"]
        late: list[bool] = []

        def look() -> bool:
            if time.process_time() > limit:
                late.append(True)
            return bool(late)

        connection.set_progress_handler(look, STEPS)
        yield _told(connection, refusals, late), _names
    finally:
        connection.close()


def _told(connection: sqlite3.Connection, refusals: list[str], late: list[bool]) -> Any:
    """`execute`, with the reason for a refusal in its error."""

    class Cursor:
        def __init__(self, query: str) -> None:
            self.cursor = self._try(connection.execute, query)
            self.description = self.cursor.description

        def fetchone(self) -> Any:
            return self._try(self.cursor.fetchone)

        def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return call(*arguments)
            except sqlite3.Error as error:
                if late:
                    raise _Refused("over the CPU limit") from error
                if refusals:
                    raise _Refused(f"refused: {refusals[0]}") from error
                raise

    return Cursor


def _authorizer(refusals: list[str]) -> Callable[..., int]:
    reads = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION,
             getattr(sqlite3, "SQLITE_RECURSIVE", 33)}  # fmt: skip

    def allow(
        action: int, one: str | None, two: str | None, _database: str | None, _view: str | None
    ) -> int:
        if action in reads:
            name = (two if action == sqlite3.SQLITE_FUNCTION else one) or ""
            name = name.lower()
            refused = name in REFUSED if action == sqlite3.SQLITE_FUNCTION else name.startswith(
                ("sqlite_", "pragma_", "dbstat")
            )  # fmt: skip
            if not refused:
                return sqlite3.SQLITE_OK
        refusals.append(f"action {action} on {one or two!r}")
        return sqlite3.SQLITE_DENY

    return allow


def _given(job: Job) -> sqlite3.Connection:
    """A copy of the file in a folder of its own, with its log written back where it has one."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "given.db")
        for suffix, key in (("", "data"), ("-wal", "wal")):
            if job.get(key):
                with open(path + suffix, "wb") as file:
                    file.write(base64.b64decode(job[key]))
        given = sqlite3.connect(path)
        try:
            memory = sqlite3.connect(":memory:")
            given.backup(memory)
            return memory
        finally:
            given.close()


def _names(cursor: Any) -> list[str]:
    return [str(column[0]) for column in cursor.description or ()]


# --- DuckDB ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _duckdb(job: Job) -> Iterator[Any]:
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": "1",
            "memory_limit": "256MB",
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    try:
        if job.get("setup"):
            connection.execute(job["setup"])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        connection.execute("BEGIN TRANSACTION READ ONLY")

        def execute(query: str) -> Any:
            statements = connection.extract_statements(query)
            if len(statements) != 1:
                raise _Refused(f"one statement is allowed, got {len(statements)}")
            if statements[0].type.name not in ("SELECT", "SELECT_STATEMENT"):
                raise _Refused(f"refused: a statement of type {statements[0].type.name}")
            return connection.execute(statements[0])

        with _interrupted_after(job["cpu_s"], connection):
            yield execute, _names
    finally:
        connection.close()


@contextlib.contextmanager
def _interrupted_after(cpu_s: float, connection: Any) -> Iterator[None]:
    """DuckDB looks at no clock: a thread does."""
    limit, over = time.process_time() + cpu_s, threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if time.process_time() > limit:
                connection.interrupt()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run_text(text: str) -> str:
    """`run`, from JSON to JSON."""
    return json.dumps(run(json.loads(text)))


if __name__ == "__main__":
    sys.stdout.write(run_text(sys.stdin.read()))
