"""Other packages' attacks on every built-in environment: all caught, all positive controls pass."""

from __future__ import annotations

import pytest

from quintain import registry
from quintain.audits import aaudit
from quintain.audits.aims import aim_of
from quintain.audits.packages import PACKAGES, bohrin, gradecheck, missing
from quintain.audits.sources import default_sources
from quintain.audits.trials import Pass
from quintain.errors import ConfigError
from quintain.protocols import Environment

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def _packages():
    if missing():
        pytest.skip(f"not installed: {', '.join(missing())} (pip install 'quintain[audit]')")


@pytest.mark.parametrize("name", sorted(registry.environments.builtin))
async def test_every_attack_is_caught_and_every_control_accepted(name):
    environment: Environment = registry.environments.get(name)()
    report = await aaudit(
        environment, limit=2, sources=["gold", *PACKAGES], passes=[Pass("once", 2)]
    )
    assert report.findings == ()
    assert report.problems() == []
    assert report.false_positives.n >= 10
    assert not [trial for trial in report.trials if not trial.judged]
    if name == "python":
        assert report.kinds["bohrin: drop_side_effect"][1] > 0
        controls = [t for t in report.trials if t.submission.kind == "bohrin: positive control"]
        assert len(controls) >= 4
        assert all(trial.passed for trial in controls)


def test_what_they_bring():
    environment = registry.environments.get("terminal")()
    aim = aim_of(environment, next(iter(environment.tasks.split("eval"))))
    kinds = {found.kind for found in bohrin(environment, aim, [])}
    assert {"bohrin: reward_written", "bohrin: hijacked_tool"} <= kinds
    names = {found.name for found in gradecheck(environment, aim, [])}
    assert {"gradecheck/empty-source", "gradecheck/test-deletion", "gradecheck/flattery"} <= names
    assert set(PACKAGES) <= set(default_sources())


def test_a_source_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("quintain.audits.packages.find_spec", lambda name: None)
    environment = registry.environments.get("terminal")()
    aim = aim_of(environment, next(iter(environment.tasks.split("eval"))))
    with pytest.raises(ConfigError, match=r"quintain\[audit\]"):
        list(bohrin(environment, aim, []))
    assert not set(PACKAGES) & set(default_sources())
