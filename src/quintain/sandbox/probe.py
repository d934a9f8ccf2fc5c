"""Finds out what a backend really enforces here: opens a small sandbox and attacks it."""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from quintain.errors import CapabilityError, IsolationError, SandboxError
from quintain.protocols import ExecResult, Probe, Sandbox, SandboxBackend
from quintain.record import Json
from quintain.sandbox import filter as calls
from quintain.sandbox import measure, sitting
from quintain.sandbox.attacks import ATTACKS, Attack
from quintain.sandbox.network import check
from quintain.sandbox.sitting import Turn
from quintain.task import SandboxSpec

T = TypeVar("T")
SPEC = SandboxSpec(memory_mb=64, disk_mb=16, max_pids=40, cpus=0.5, max_output_bytes=100_000)


class Target:
    """Things of the host for attacks to reach for, as long as the context is open."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="quintain-probe-")
        self._servers: list[socket.socket] = []
        self.facts: dict[str, Json] = {}

    def __enter__(self) -> Target:
        canary = Path(self._folder.name, "canary")
        canary.write_text(secrets.token_hex(8))
        self._servers = [socket.create_server(("127.0.0.1", 0))]
        abstract = f"@quintain-probe-{secrets.token_hex(8)}"
        if sys.platform == "linux":
            server = socket.socket(socket.AF_UNIX)
            server.bind(abstract.replace("@", "\0"))
            server.listen()
            self._servers.append(server)
        table = calls.TABLES.get(platform.machine(), {})
        self.facts = {
            "canary": str(canary),
            "port": self._servers[0].getsockname()[1],
            "abstract": abstract,
            "host_name": socket.gethostname(),
            "victim": os.getpid(),
            "calls": {name: table[name] for name in table if name not in calls.HARMFUL},
            "memory_mb": SPEC.memory_mb,
            "max_pids": SPEC.max_pids,
            "inside": True,
        }
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        self._folder.cleanup()


async def attack(
    sandbox: Sandbox, one: Attack, facts: Mapping[str, Json], patience: float = 1.0
) -> ExecResult:
    """Runs one attack inside, in `patience` times the time that it usually gets."""
    argv = ["python3", "-c", one.code, json.dumps(dict(facts))]
    return await sandbox.exec(argv, timeout_s=one.timeout_s * patience)


async def probe(
    backend: SandboxBackend,
    missing: Mapping[str, str],
    advice: str,
    details: Mapping[str, Json],
    *,
    patience: float = 1.0,
    spec: SandboxSpec = SPEC,
) -> Probe:
    """Attacks a sandbox of the backend.

    In a sitting of several (`sitting.py`) what there is no time for is named in the details.

    Args:
        backend: opens sandboxes even where a limit is missing.
        missing: limits known to be missing here, with the reason: not attacked.
        advice: what to do about it.
        details: more to report.
        patience: how many times longer than usual an attack may take, on an emulated machine.
        spec: what to open.
    """
    found = dict(missing)
    told = dict(details)
    turn = sitting.turn()
    try:
        async with turn.limit():
            sandbox = await backend.open(spec)
    except (SandboxError, OSError) as error:
        if isinstance(error, TimeoutError) and not isinstance(error, SandboxError):
            raise
        names = error.missing if isinstance(error, IsolationError) else ("namespaces",)
        return Probe(
            backend=backend.name,
            available=False,
            missing={**found, **dict.fromkeys(names, str(error))},
            advice=advice or str(error),
            details=told,
        )
    siege = _Siege(backend, sandbox, spec, patience, turn, found)
    try:
        with Target() as target:
            await siege.attacks([one for one in ATTACKS if not one.alone], target)
            await siege.allow_list(told)
            async with turn.alone():
                await siege.attacks([one for one in ATTACKS if one.alone], target)
                await siege.sandbox.close()
                await siege.measures(told)
    finally:
        await siege.sandbox.close()
    if siege.unmeasured:
        told["not_measured"] = list(siege.unmeasured)
    return Probe(
        backend=backend.name,
        available=True,
        enforced=tuple(siege.enforced),
        missing=found,
        advice=advice if found else "",
        details=told,
    )


@dataclass(slots=True)
class _Siege:
    """One probe under way."""

    backend: SandboxBackend
    sandbox: Sandbox
    spec: SandboxSpec
    patience: float
    turn: Turn
    found: dict[str, str]
    """Walls that do not hold, and why."""
    enforced: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    """What there was no time for."""

    async def attacks(self, attacks: Sequence[Attack], target: Target) -> None:
        for one in attacks:
            if one.wall in self.found:
                continue
            run = await self._in_time(one.wall, partial(self._attack, one, target))
            if run is None:
                continue
            if one.held(run):
                self.enforced.append(one.wall)
            else:
                self.found[one.wall] = _why(run)

    async def _attack(self, one: Attack, target: Target) -> ExecResult:
        try:
            return await attack(self.sandbox, one, target.facts, self.patience)
        except SandboxError:
            # Some end as a whole at a limit that an attack before this one hit.
            await self.sandbox.close()
            self.sandbox = await self.backend.open(self.spec)
            return await attack(self.sandbox, one, target.facts, self.patience)

    async def allow_list(self, told: dict[str, Json]) -> None:
        try:
            through = await self._in_time(
                check.WALL, lambda: check.allow_list(self.backend, self.spec, self.patience)
            )
        except (IsolationError, CapabilityError) as error:
            told[check.WALL] = f"refused by name: {error}"
            return
        if through:
            self.found[check.WALL] = f"got through: {through}"
        elif through is not None:
            self.enforced.append(check.WALL)

    async def measures(self, told: dict[str, Json]) -> None:
        times = await self._in_time(
            "times", lambda: measure.latency(self.backend, self.spec, self.turn.left_s)
        )
        if times is None:
            self.unmeasured.append("memory of one")
            return
        told["latency_ms"] = times
        took_ms = times["fresh_true"]
        memory = await self._in_time(
            "memory of one", lambda: measure.density(self.backend, self.spec, took_ms)
        )
        if memory is not None:
            told["density"] = memory

    async def _in_time(self, what: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """The outcome; None, and a note, where the time is up first."""
        if self.turn.left_s > 0:
            try:
                async with self.turn.limit():
                    return await work()
            except TimeoutError as error:
                if isinstance(error, SandboxError):
                    raise
        self.unmeasured.append(what)
        return None


def _why(run: ExecResult) -> str:
    said = " ".join((run.text + run.error_text).split())[-200:]
    return f"the attack got through (exit code {run.exit_code} {run.killed}): {said}"
