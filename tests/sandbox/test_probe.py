"""The probe's attacks: contained inside, successful outside, and told by name when they are not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from quintain.protocols import ExecResult
from quintain.sandbox import landlock
from quintain.sandbox.attacks import ATTACKS
from quintain.sandbox.probe import Target, attack, probe
from quintain.task import SandboxSpec


async def test_everything_holds(backend):
    found = await backend.probe()
    assert found.available
    walls = {one.wall for one in ATTACKS} | {"network allow-list"}
    assert walls == set(found.enforced) | set(found.missing)
    assert {"files", "network", "processes", "seccomp", "namespaces"} <= set(found.enforced)
    assert not {name for name, why in found.missing.items() if "got through" in why}, found
    assert found.details["latency_ms"]["fresh_true"] > 0
    told = found.details["second_layer"]
    assert told == (", ".join(landlock.layers(landlock.version())) or told)
    assert told.startswith("files" if landlock.version() >= 2 else "none")


@pytest.mark.parametrize("one", [one for one in ATTACKS if one.control], ids=lambda one: one.wall)
def test_unprotected_control(one):
    """On the bare host, as a process without limits, the attack works: the program can fail."""
    with Target() as target:
        facts = {**target.facts, "inside": False, "victim": 0}
        run = subprocess.run(
            [sys.executable, "-c", one.code, json.dumps(facts)], capture_output=True, timeout=20
        )
    result = ExecResult(exit_code=run.returncode, stdout=run.stdout, stderr=run.stderr)
    assert not one.held(result), result


class _NoWalls:
    """A backend that isolates nothing: what a probe must find out."""

    name = "none"
    capabilities = frozenset()
    spec = SandboxSpec()

    async def open(self, spec):
        return self

    async def exec(self, argv, *, timeout_s=None, **_):
        run = subprocess.run(argv, capture_output=True, timeout=20)
        return ExecResult(exit_code=run.returncode, stdout=run.stdout, stderr=run.stderr)

    async def close(self):
        pass


async def test_a_backend_without_walls_is_told(monkeypatch):
    import quintain.sandbox.probe as module

    walls = {"network", "capabilities", "host facts"}
    monkeypatch.setattr(module, "ATTACKS", [one for one in ATTACKS if one.wall in walls])

    async def not_measured(*_):
        return {}

    # Its commands sleep until the sandbox closes, and this one never ends any.
    monkeypatch.setattr(module.measure, "density", not_measured)
    found = await probe(_NoWalls(), {}, "use the native one", {})
    assert found.available
    assert set(found.missing) >= {"network", "host facts"}
    assert "got through" in found.missing["network"]
    assert found.advice == "use the native one"


async def test_an_attack_can_be_run_alone(box):
    with Target() as target:
        run = await attack(box, ATTACKS[0], target.facts)
    assert ATTACKS[0].held(run), run
