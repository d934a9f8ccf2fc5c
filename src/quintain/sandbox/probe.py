"""Finds out what a backend really enforces here: opens a small sandbox and attacks it."""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from quintain.errors import CapabilityError, IsolationError, SandboxError
from quintain.protocols import ExecResult, Probe, Sandbox, SandboxBackend
from quintain.record import Json
from quintain.sandbox import filter as calls
from quintain.sandbox import measure
from quintain.sandbox.attacks import ATTACKS, Attack
from quintain.sandbox.network import check
from quintain.task import SandboxSpec

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

    Args:
        backend: opens sandboxes even where a limit is missing.
        missing: limits known to be missing here, with the reason: not attacked.
        advice: what to do about it.
        details: more to report.
        patience: how many times longer than usual an attack may take, on an emulated machine.
        spec: what to open.
    """
    enforced: list[str] = []
    found = dict(missing)
    told = dict(details)
    try:
        sandbox = await backend.open(spec)
    except (SandboxError, OSError) as error:
        names = error.missing if isinstance(error, IsolationError) else ("namespaces",)
        return Probe(
            backend=backend.name,
            available=False,
            missing={**found, **dict.fromkeys(names, str(error))},
            advice=advice or str(error),
            details=told,
        )
    try:
        with Target() as target:
            for one in ATTACKS:
                if one.wall in found:
                    continue
                try:
                    run = await attack(sandbox, one, target.facts, patience)
                except SandboxError:
                    # Some end as a whole at a limit that an attack before this one hit.
                    await sandbox.close()
                    sandbox = await backend.open(spec)
                    run = await attack(sandbox, one, target.facts, patience)
                if one.held(run):
                    enforced.append(one.wall)
                else:
                    found[one.wall] = _why(run)
    finally:
        await sandbox.close()
    try:
        through = await check.allow_list(backend, spec, patience)
    except (IsolationError, CapabilityError) as error:
        told[check.WALL] = f"refused by name: {error}"
    else:
        if through:
            found[check.WALL] = f"got through: {through}"
        else:
            enforced.append(check.WALL)
    told["latency_ms"] = await measure.latency(backend, spec)
    told["density"] = await measure.density(backend, spec, told["latency_ms"]["fresh_true"])
    return Probe(
        backend=backend.name,
        available=True,
        enforced=tuple(enforced),
        missing=found,
        advice=advice if found else "",
        details=told,
    )


def _why(run: ExecResult) -> str:
    said = " ".join((run.text + run.error_text).split())[-200:]
    return f"the attack got through (exit code {run.exit_code} {run.killed}): {said}"
