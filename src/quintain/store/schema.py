"""The tables of a run's SQLite file, their version, and how an older file is brought up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from quintain.errors import StoreError

SCHEMA = 2
"""Version of the tables below; `_MIGRATIONS[n]` leads from n to n + 1."""

_TABLES_V1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY,
    purpose TEXT NOT NULL,
    environment TEXT NOT NULL,
    task_id TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    final INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reward REAL,
    stop TEXT NOT NULL,
    steps INTEGER NOT NULL,
    total_s REAL NOT NULL,
    cost_usd REAL NOT NULL,
    committed TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX one_attempt
    ON trajectories (purpose, environment, task_id, sample_index, attempt);
CREATE UNIQUE INDEX one_final
    ON trajectories (purpose, environment, task_id, sample_index) WHERE final = 1;
CREATE TABLE metrics (
    id INTEGER PRIMARY KEY, scope TEXT NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL,
    value REAL, at TEXT NOT NULL
);
CREATE INDEX metrics_by_name ON metrics (scope, name, step);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, at TEXT NOT NULL, data TEXT NOT NULL
);
"""

_TABLES_V2 = """
CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    environment TEXT NOT NULL,
    task_id TEXT NOT NULL,
    first_sample INTEGER NOT NULL,
    size INTEGER NOT NULL,
    admitted_version INTEGER NOT NULL,
    consumed_step INTEGER
);
CREATE INDEX groups_by_task ON groups (environment, task_id);
CREATE TABLE checkpoints (
    version INTEGER PRIMARY KEY, step INTEGER NOT NULL, path TEXT NOT NULL, hash TEXT NOT NULL,
    created TEXT NOT NULL, state TEXT NOT NULL
);
"""

_MIGRATIONS: dict[int, str] = {1: _TABLES_V2}


def run_file(folder: str | Path) -> Path:
    """The SQLite file of a run's folder."""
    return Path(folder) / "run.sqlite"


def connect(folder: Path) -> sqlite3.Connection:
    """A connection that may write: WAL, synchronous=NORMAL, autocommit.

    Raises:
        StoreError: the file cannot be opened.
    """
    try:
        connection = sqlite3.connect(
            run_file(folder), timeout=30.0, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error as error:
        raise StoreError(f"cannot open {run_file(folder)}: {error}") from error
    return connection


def connect_read_only(folder: Path) -> sqlite3.Connection:
    """A connection that only reads, and never blocks the writer.

    Raises:
        StoreError: the file cannot be opened.
    """
    uri = f"{run_file(folder).absolute().as_uri()}?mode=ro"
    try:
        connection = sqlite3.connect(
            uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False
        )
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"cannot read {run_file(folder)}: {error}") from error
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a file; 0: empty."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_newer(folder: Path, version: int) -> None:
    """Raises StoreError when the file is newer than this code."""
    if version > SCHEMA:
        raise StoreError(
            f"{folder} was written by a newer Quintain (schema {version}, this one knows "
            f"{SCHEMA}); upgrade quintain to read it"
        )


def prepare(folder: Path, connection: sqlite3.Connection) -> None:
    """Makes the tables, or brings older ones up to date, in one transaction.

    Raises:
        StoreError: the file is newer than this code.
    """
    version = version_of(connection)
    refuse_newer(folder, version)
    if version == SCHEMA:
        return
    script = _TABLES_V1 if version == 0 else ""
    script += "".join(_MIGRATIONS[step] for step in range(max(version, 1), SCHEMA))
    connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version={SCHEMA}; COMMIT;")
