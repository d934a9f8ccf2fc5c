"""Several probes in one sitting: what does not fit is told; nobody waits for one that hangs."""

from __future__ import annotations

import asyncio
import subprocess

from quintain import registry
from quintain.cli.doctor import probe_all
from quintain.protocols import ExecResult, Probe
from quintain.sandbox import measure, probe, sitting
from quintain.sandbox.attacks import ATTACKS
from quintain.task import SandboxSpec

QUICK = [one for one in ATTACKS if one.wall in ("capabilities", "host facts", "cpus")]


class _Open:
    """A backend without walls; `hang` names what never ends: "open", "exec" or nothing."""

    capabilities = frozenset()
    spec = SandboxSpec()

    def __init__(self, name, hang, attacked):
        self.name, self.hang, self.attacked = name, hang, attacked
        self.closed = 0

    async def probe(self) -> Probe:
        return await probe.probe(self, {"network": "none here"}, "", {})

    async def open(self, spec):
        if self.hang == "open":
            await asyncio.Event().wait()
        return self

    async def exec(self, argv, *, timeout_s=None, **_):
        if self.hang == "exec":
            await asyncio.Event().wait()
        if "python3" in argv:
            self.attacked.append(self.name)
        run = await asyncio.to_thread(subprocess.run, argv, capture_output=True, timeout=20)
        return ExecResult(exit_code=run.returncode, stdout=run.stdout, stderr=run.stderr)

    async def close(self):
        self.closed += 1


async def _no_density(*_):
    return {}


async def _probed(monkeypatch, capsys, within_s, **hangs):
    attacked: list[str] = []
    backends = {name: _Open(name, hang, attacked) for name, hang in hangs.items()}
    monkeypatch.setattr(registry.sandboxes, "get", lambda name: lambda: backends[name])
    monkeypatch.setattr(probe, "ATTACKS", QUICK)
    monkeypatch.setattr(measure, "density", _no_density)
    found = await probe_all(list(hangs), within_s)
    assert [one.backend for one in found] == list(hangs), "in the order asked for"
    assert all(backend.closed for backend in backends.values())
    said = capsys.readouterr().err
    assert all(f"{name}: " in said for name in hangs), "each is told when it is done"
    return {one.backend: one for one in found}, attacked


async def test_what_hangs_is_told_as_not_measured_and_keeps_nobody(monkeypatch, capsys):
    found, _ = await _probed(monkeypatch, capsys, 12, hung="exec", shut="open", whole="")
    hung, shut, whole = found["hung"], found["shut"], found["whole"]
    assert set(hung.details["not_measured"]) >= {"capabilities", "host facts"}
    assert hung.enforced == ()
    assert not shut.available
    assert "not measured" in shut.advice
    assert "quintain doctor --sandbox shut --within" in shut.advice
    assert {"capabilities", "host facts", "cpus"} <= {*whole.missing, *whole.enforced}
    assert whole.details["latency_ms"]["fresh_true"] > 0
    assert "not_measured" not in whole.details or "times" not in whole.details["not_measured"]


async def test_nobody_measures_while_others_attack(monkeypatch, capsys):
    seen: list[int] = []
    real = measure.latency

    async def latency(*arguments):
        seen.append(len(attacks))
        return await real(*arguments)

    attacks: list[str] = []
    monkeypatch.setattr(measure, "latency", latency)
    started: dict[str, int] = {}
    real_attack = probe.attack

    async def attack(sandbox, one, *rest):
        if not one.alone:
            attacks.append(one.wall)
            started[sandbox.name] = len(attacks)
        return await real_attack(sandbox, one, *rest)

    monkeypatch.setattr(probe, "attack", attack)
    await _probed(monkeypatch, capsys, 100, a="", b="", c="", d="", e="")
    assert seen == [len(attacks)] * 5, "all had attacked"


async def test_a_probe_alone_has_all_the_time_it_wants():
    turn = sitting.turn()
    assert turn.left_s == float("inf")
    async with turn.limit(), turn.alone():
        assert turn.left_s == float("inf")
