"""Reading a run: trajectories and their index, metrics, events, checkpoints, blobs."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quintain.errors import StoreError
from quintain.record import Json
from quintain.store.rows import CheckpointRow, GroupRow, TrajectoryRow
from quintain.store.schema import connect_read_only
from quintain.trajectory import Trajectory, TrajectoryKey


class Reader:
    """The queries of a run, each on a connection of the calling thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._closed = False

    def _close_readers(self) -> None:
        self._closed = True
        for connection in self._readers:
            connection.close()
        self._readers.clear()

    def _blob_path(self, name: str) -> Path:
        if len(name) != 64 or not all(c in "0123456789abcdef" for c in name):
            raise StoreError(f"{name!r} is not the hash of a blob")
        return self.folder / "blobs" / name

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            if self._closed:
                raise StoreError(f"{self.folder} is closed")
            connection = connect_read_only(self.folder)
            self._local.connection = connection
            self._readers.append(connection)
        return connection

    @contextmanager
    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[sqlite3.Cursor]:
        """A read-only query on a connection of the calling thread."""
        cursor = self._reader().execute(sql, tuple(parameters))
        try:
            yield cursor
        finally:
            cursor.close()

    def meta(self, key: str) -> Json:
        """A value of the run: `id`, `kind`, `created`, `identity`, `config`, …; None if absent."""
        with self.query("SELECT value FROM meta WHERE key = ?", (key,)) as cursor:
            row = cursor.fetchone()
        return None if row is None else json.loads(row[0])

    def rows(
        self,
        *,
        purpose: str | None = None,
        environment: str | None = None,
        task_id: str | None = None,
        outcome: str | None = None,
        final: bool | None = True,
    ) -> list[TrajectoryRow]:
        """The index of trajectories, by task and sample; `final=None`: all attempts."""
        where, parameters = _where(purpose, environment, task_id, outcome, final)
        with self.query(
            "SELECT purpose, environment, task_id, sample_index, attempt, final, outcome, reward,"
            f" stop, steps, total_s, cost_usd FROM trajectories {where}"
            " ORDER BY purpose, environment, task_id, sample_index, attempt",
            parameters,
        ) as cursor:
            return [
                TrajectoryRow(TrajectoryKey(*row[:5]), bool(row[5]), *row[6:]) for row in cursor
            ]

    def trajectories(
        self,
        *,
        purpose: str | None = None,
        environment: str | None = None,
        task_id: str | None = None,
        outcome: str | None = None,
        final: bool | None = True,
    ) -> Iterator[Trajectory]:
        """The trajectories themselves, by task and sample, one at a time."""
        where, parameters = _where(purpose, environment, task_id, outcome, final)
        with self.query(
            f"SELECT body FROM trajectories {where}"
            " ORDER BY purpose, environment, task_id, sample_index, attempt",
            parameters,
        ) as cursor:
            for (body,) in cursor:
                yield Trajectory.model_validate_json(body)

    def get(self, key: TrajectoryKey) -> Trajectory:
        """One trajectory.

        Raises:
            StoreError: it is not there.
        """
        with self.query(
            "SELECT body FROM trajectories WHERE purpose = ? AND environment = ?"
            " AND task_id = ? AND sample_index = ? AND attempt = ?",
            key,
        ) as cursor:
            row = cursor.fetchone()
        if row is None:
            raise StoreError(f"{self.folder} holds no trajectory {tuple(key)}")
        return Trajectory.model_validate_json(row[0])

    def purposes(self) -> list[str]:
        """All purposes that trajectories were stored under, in order of their first."""
        with self.query(
            "SELECT purpose FROM trajectories GROUP BY purpose ORDER BY min(id)"
        ) as cursor:
            return [purpose for (purpose,) in cursor]

    def next_attempt(self, purpose: str, environment: str, task_id: str, sample_index: int) -> int:
        """The attempt that comes next for a sample."""
        with self.query(
            "SELECT coalesce(max(attempt) + 1, 0) FROM trajectories WHERE purpose = ?"
            " AND environment = ? AND task_id = ? AND sample_index = ?",
            (purpose, environment, task_id, sample_index),
        ) as cursor:
            return int(cursor.fetchone()[0])

    def metric_rows(self, *, scope: str = "train") -> list[tuple[int, str, float | None]]:
        """(step, name, value) of a scope, in the order stored."""
        with self.query(
            "SELECT step, name, value FROM metrics WHERE scope = ? ORDER BY id", (scope,)
        ) as cursor:
            return list(cursor)

    def metric_scopes(self) -> list[str]:
        """The scopes that metrics were stored under."""
        with self.query("SELECT scope FROM metrics GROUP BY scope ORDER BY min(id)") as cursor:
            return [scope for (scope,) in cursor]

    def event_rows(self, kind: str | None = None) -> list[tuple[str, str, Json]]:
        """(kind, time, data) of the run's events, in order."""
        where, parameters = ("WHERE kind = ?", (kind,)) if kind is not None else ("", ())
        with self.query(
            f"SELECT kind, at, data FROM events {where} ORDER BY id", parameters
        ) as cursor:
            return [(name, at, json.loads(data)) for name, at, data in cursor]

    def groups(self, *, consumed: bool | None = None) -> list[GroupRow]:
        """Training groups in the order admitted; `consumed` filters."""
        where = {
            None: "",
            True: "WHERE consumed_step IS NOT NULL",
            False: "WHERE consumed_step IS NULL",
        }
        with self.query(f"SELECT * FROM groups {where[consumed]} ORDER BY id") as cursor:
            return [GroupRow(*row) for row in cursor]

    def checkpoints(self) -> list[CheckpointRow]:
        """All checkpoints, oldest first."""
        with self.query("SELECT * FROM checkpoints ORDER BY version") as cursor:
            return [
                CheckpointRow(version, step, path, hash_, created, json.loads(state))
                for version, step, path, hash_, created, state in cursor
            ]

    def blob(self, name: str) -> bytes:
        """The content of a blob.

        Raises:
            StoreError: no such blob.
        """
        try:
            return self._blob_path(name).read_bytes()
        except FileNotFoundError as error:
            raise StoreError(f"{self.folder} holds no blob {name}") from error

    def export_jsonl(self, path: str | Path, *, purpose: str | None = None) -> int:
        """Writes the final trajectories as JSON lines; returns how many."""
        path = Path(path)
        count = 0
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        with temporary.open("w", encoding="utf-8") as file:
            for trajectory in self.trajectories(purpose=purpose):
                file.write(trajectory.model_dump_json() + "\n")
                count += 1
        temporary.replace(path)
        return count


def _where(
    purpose: str | None,
    environment: str | None,
    task_id: str | None,
    outcome: str | None,
    final: bool | None,
) -> tuple[str, list[Any]]:
    given = {
        "purpose": purpose,
        "environment": environment,
        "task_id": task_id,
        "outcome": outcome,
        "final": None if final is None else int(final),
    }
    clauses = [f"{name} = ?" for name, value in given.items() if value is not None]
    parameters = [value for value in given.values() if value is not None]
    return ("WHERE " + " AND ".join(clauses) if clauses else "", parameters)
