"""One run: make or resume it, and commit to it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import ConfigError, StoreError
from quintain.record import Json, canonical, digest
from quintain.store.reading import Reader
from quintain.store.rows import GroupRow
from quintain.store.schema import (
    SCHEMA,
    connect,
    prepare,
    refuse_newer,
    run_file,
    version_of,
)
from quintain.store.writer import Writer
from quintain.trajectory import Trajectory


def now() -> str:
    """The current time, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


_BEING_MADE_S = 2.0
"""How long a reader waits for the tables of a run that is just being made."""


class Store(Reader):
    """One run. `Store.begin` makes or resumes one for writing; `Store.read` opens one to look.

    Thread-safe. Reading methods run on the caller's thread with a connection of their own; async
    methods hand their work to the writer and return once it is on disk.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._writer: Writer | None = None
        self._lock_fd: int | None = None

    # --- opening ---------------------------------------------------------------------------

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        *,
        kind: str,
        identity: Mapping[str, Json],
        config: Mapping[str, Json] | None = None,
        resume: bool = False,
    ) -> Store:
        """Makes a run, or goes on with one.

        Args:
            folder: the run's folder; made when absent.
            kind: "eval" or "train".
            identity: what must be the same for a resumed run to be the same run.
            config: the resolved configuration and versions, stored as told.
            resume: whether to go on where the folder holds a run already.

        Raises:
            ConfigError: the folder holds a run and `resume` is False, or the identity differs.
            StoreError: another process writes this run, or its schema is newer than this code.
        """
        folder = Path(folder)
        exists = run_file(folder).exists()
        if exists and not resume:
            raise ConfigError(
                f"{folder} already holds a run; resume it (--resume), or choose another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        store = cls(folder)
        store._take_lock()
        try:
            connection = connect(folder)
            try:
                prepare(folder, connection)
                if store.meta("kind") is None:
                    _write_meta(connection, folder, kind, identity, config or {})
                else:
                    store._check_identity(kind, identity)
            finally:
                connection.close()
        except BaseException:
            store.close()
            raise
        store._writer = Writer(folder)
        return store

    @classmethod
    def extend(cls, folder: str | Path) -> Store:
        """Opens a run that is done, to add to what it holds (labels, say); it stays what it is.

        Raises:
            StoreError: there is no run, or another process writes it.
        """
        cls.read(folder).close()
        store = cls(Path(folder))
        store._take_lock()
        store._writer = Writer(store.folder)
        return store

    @classmethod
    def read(cls, folder: str | Path) -> Store:
        """Opens a run to look at, also while another process writes it.

        Raises:
            StoreError: there is no run, or its schema is newer than this code.
        """
        folder = Path(folder)
        if not run_file(folder).exists():
            raise StoreError(f"{folder} holds no run (no run.sqlite in it)")
        store = cls(folder)
        version = version_of(store._reader())
        deadline = time.monotonic() + _BEING_MADE_S
        while version == 0 and time.monotonic() < deadline:
            # Another process is making the run at this very moment.
            time.sleep(0.01)
            version = version_of(store._reader())
        if version == 0:
            raise StoreError(f"{folder} holds no run (its run.sqlite is empty)")
        refuse_newer(folder, version)
        if version < SCHEMA:
            # An old run is migrated once, under the writer's lock; then it is read as any other.
            store._take_lock()
            connection = connect(folder)
            try:
                prepare(folder, connection)
            finally:
                connection.close()
                store._release_lock()
        return store

    def _take_lock(self) -> None:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreError(
                f"{self.folder} is being written by another process (pid {owner})"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock_fd = descriptor

    def _release_lock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _check_identity(self, kind: str, identity: Mapping[str, Json]) -> None:
        stored_kind = self.meta("kind")
        if stored_kind != kind:
            raise ConfigError(f"{self.folder} holds a run of kind {stored_kind!r}, not {kind!r}")
        stored = self.meta("identity") or {}
        wanted = json.loads(canonical(dict(identity)))
        for key in sorted({*stored, *wanted}):
            if stored.get(key) != wanted.get(key):
                raise ConfigError(
                    f"cannot resume {self.folder}: {key} was {stored.get(key)!r}, "
                    f"now {wanted.get(key)!r}; use the same, or another folder"
                )

    def close(self) -> None:
        """Writes what is queued, then closes; may be called twice."""
        # The last connection to close folds the log into the file: then it is one file.
        self._close_readers()
        if self._writer is not None:
            self._writer.close()
        self._release_lock()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def writer(self) -> Writer:
        """The writing thread.

        Raises:
            StoreError: the run is open for reading only.
        """
        if self._writer is None:
            raise StoreError(f"{self.folder} is open for reading only")
        return self._writer

    # --- writing ---------------------------------------------------------------------------

    async def commit(
        self,
        trajectory: Trajectory,
        *,
        final: bool = True,
        blobs: Mapping[str, bytes] | None = None,
    ) -> None:
        """Commits a judged trajectory; returns when it is on disk.

        Args:
            trajectory: with its outcome.
            final: whether this attempt is the one that counts.
            blobs: contents of its artifacts by hash, written before the row that names them.

        Raises:
            StoreError: it has no outcome, is there already, or the disk refused.
        """
        if trajectory.outcome is None:
            raise StoreError(f"trajectory {trajectory.key} has no outcome yet")
        await self.writer.awrite(
            lambda connection: self._insert(connection, trajectory, final, blobs)
        )

    def _insert(
        self,
        connection: sqlite3.Connection,
        trajectory: Trajectory,
        final: bool,
        blobs: Mapping[str, bytes] | None,
    ) -> None:
        for name, data in (blobs or {}).items():
            self._write_blob(name, data)
        verdict = trajectory.verdict
        try:
            connection.execute(
                "INSERT INTO trajectories (purpose, environment, task_id, sample_index, attempt,"
                " final, outcome, reward, stop, steps, total_s, cost_usd, committed, body)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    *trajectory.key,
                    int(final),
                    str(trajectory.outcome),
                    None if verdict is None else verdict.reward,
                    str(trajectory.stop),
                    len(trajectory.steps),
                    trajectory.timing.total_s,
                    trajectory.usage.cost_usd,
                    now(),
                    trajectory.model_dump_json(),
                ),
            )
        except sqlite3.IntegrityError as error:
            raise StoreError(f"{trajectory.key} is stored already: {error}") from error

    async def unfinal(self, purpose: str, outcomes: Sequence[str]) -> int:
        """Makes final attempts with these outcomes count no more, so that they run again."""
        marks = ",".join("?" * len(outcomes))
        return await self.writer.awrite(
            lambda connection: (
                connection.execute(
                    f"UPDATE trajectories SET final = 0 WHERE final = 1 AND purpose = ?"
                    f" AND outcome IN ({marks})",
                    (purpose, *outcomes),
                ).rowcount
            )
        )

    async def play_again(self, purpose: str, groups: Sequence[GroupRow]) -> int:
        """Makes the trajectories of these groups count no more, so that they run again."""
        rows = [
            (purpose, g.environment, g.task_id, g.first_sample, g.first_sample + g.size)
            for g in groups
        ]
        return await self.writer.awrite(
            lambda connection: (
                connection.executemany(
                    "UPDATE trajectories SET final = 0 WHERE final = 1 AND purpose = ?"
                    " AND environment = ? AND task_id = ? AND sample_index >= ?"
                    " AND sample_index < ?",
                    rows,
                ).rowcount
            )
        )

    async def metrics(
        self, step: int, values: Mapping[str, float], *, scope: str = "train"
    ) -> None:
        """Stores one row a value under (scope, step); values that are not finite as NULL."""
        at = now()
        rows = [(scope, step, name, _finite(value), at) for name, value in values.items()]
        await self.writer.awrite(
            lambda connection: (
                connection.executemany(
                    "INSERT INTO metrics (scope, step, name, value, at) VALUES (?,?,?,?,?)", rows
                ).rowcount
            )
        )

    async def event(self, kind: str, data: Json = None) -> None:
        """Stores an event of the run (not of one trajectory)."""
        row = (kind, now(), canonical(data))
        await self.writer.awrite(
            lambda connection: (
                connection.execute(
                    "INSERT INTO events (kind, at, data) VALUES (?,?,?)", row
                ).rowcount
            )
        )

    async def set_meta(self, key: str, value: Json) -> None:
        """Stores a value of the run under a key."""
        await self.writer.awrite(
            lambda connection: (
                connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES (?,?)", (key, canonical(value))
                ).rowcount
            )
        )

    async def admit_group(
        self, environment: str, task_id: str, size: int, version: int
    ) -> GroupRow:
        """Fixes the sample indexes of the next training group of a task."""

        def action(connection: sqlite3.Connection) -> GroupRow:
            (first,) = connection.execute(
                "SELECT coalesce(max(first_sample + size), 0) FROM groups"
                " WHERE environment = ? AND task_id = ?",
                (environment, task_id),
            ).fetchone()
            cursor = connection.execute(
                "INSERT INTO groups (environment, task_id, first_sample, size, admitted_version)"
                " VALUES (?,?,?,?,?)",
                (environment, task_id, first, size, version),
            )
            assert cursor.lastrowid is not None
            return GroupRow(cursor.lastrowid, environment, task_id, first, size, version, None)

        return await self.writer.awrite(action)

    async def consume_groups(self, ids: Sequence[int], step: int) -> None:
        """Marks groups as trained on at a step."""
        rows = [(step, group) for group in ids]
        await self.writer.awrite(
            lambda connection: (
                connection.executemany(
                    "UPDATE groups SET consumed_step = ? WHERE id = ?", rows
                ).rowcount
            )
        )

    async def checkpoint(
        self, *, version: int, step: int, path: Path, hash: str, state: Json
    ) -> None:
        """Records a checkpoint whose files are complete at `path`."""
        row = (
            version,
            step,
            str(path.relative_to(self.folder)),
            hash,
            now(),
            canonical(state),
        )
        await self.writer.awrite(
            lambda connection: (
                connection.execute(
                    "INSERT OR REPLACE INTO checkpoints VALUES (?,?,?,?,?,?)", row
                ).rowcount
            )
        )

    async def rewind(self, step: int) -> int:
        """Forgets training after a step: its metrics go, its groups wait to be trained again.

        Called on resume with the last checkpoint's step; trajectories stay. Returns how many
        groups were given back.
        """

        def action(connection: sqlite3.Connection) -> int:
            connection.execute("DELETE FROM metrics WHERE scope = 'train' AND step > ?", (step,))
            connection.execute("DELETE FROM checkpoints WHERE step > ?", (step,))
            return connection.execute(
                "UPDATE groups SET consumed_step = NULL WHERE consumed_step > ?", (step,)
            ).rowcount

        return await self.writer.awrite(action)

    def _write_blob(self, name: str, data: bytes) -> None:
        path = self._blob_path(name)
        if path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f"{name}.{os.getpid()}.part")
        temporary.write_bytes(data)
        temporary.replace(path)


def blob_hash(data: bytes) -> str:
    """The name of a blob: SHA-256, hex."""
    return hashlib.sha256(data).hexdigest()


def _write_meta(
    connection: sqlite3.Connection,
    folder: Path,
    kind: str,
    identity: Mapping[str, Json],
    config: Mapping[str, Json],
) -> None:
    rows = {
        "id": digest(str(folder), now(), os.urandom(8)),
        "kind": kind,
        "created": now(),
        "identity": dict(identity),
        "config": dict(config),
    }
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)", [(key, canonical(value)) for key, value in rows.items()]
    )
    connection.execute("COMMIT")


def _finite(value: float) -> float | None:
    number = float(value)
    return number if number == number and abs(number) != float("inf") else None
