"""Weights from a training run: `RUN` (the selected ones), `RUN@STEP` or `RUN@vVERSION`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from quintain.cli.settings import PolicySettings
from quintain.errors import ConfigError
from quintain.loop import TrainRun
from quintain.protocols import Policy, Published
from quintain.store import Store
from quintain.training.run import trainable

_HARDWARE = ("threads", "device")
"""Fields of a model's spec that say where it runs, not what it is."""


def published(name: str) -> Published:
    """The weights that a name means.

    Raises:
        ConfigError: the run holds no such checkpoint; those that it holds are listed.
        StoreError: there is no run.
    """
    folder, where = _parts(name)
    run = TrainRun(folder)
    with run.store:
        if not where:
            chosen = run.select()
            return Published(chosen.version, chosen.path, chosen.hash)
        rows = run.store.checkpoints()
        for row in rows:
            if where in (str(row.step), f"v{row.version}"):
                path = run.folder / row.path / "model.safetensors"
                return Published(row.version, path, row.hash)
    held = ", ".join(f"{row.step} (v{row.version})" for row in rows) or "none"
    raise ConfigError(f"{folder} holds no checkpoint {where!r}; it holds steps: {held}")


def settings_of(name: str) -> PolicySettings:
    """The policy that the run was started with.

    Raises:
        ConfigError: the run was not started by a command, so that this is not known.
    """
    folder, _ = _parts(name)
    with Store.read(folder) as store:
        kept = (store.meta("config") or {}).get("settings", {}).get("policy")
    if not kept:
        raise ConfigError(
            f"{folder} was not started by `quintain train`: give the policy that it trained, with "
            "its settings (--policy smollm2 --set policy.lora=16)"
        )
    return PolicySettings.model_validate({**kept, "checkpoint": name})


async def load(policy: Policy, name: str) -> None:
    """Gives a policy the weights.

    Raises:
        ConfigError: it is another model than the one that was trained; what differs is named.
    """
    weights = published(name)
    folder, _ = _parts(name)
    with Store.read(folder) as store:
        trained = (store.meta("identity") or {}).get("model", {})
    target = trainable(policy)
    for key, value in asdict(target.spec).items():
        if key not in _HARDWARE and key in trained and trained[key] != value:
            raise ConfigError(
                f"{folder} trained a model with {key}={trained[key]!r}, the policy has {value!r}: "
                f"--set policy.{key}={trained[key]}"
            )
    await target.update(weights)


def _parts(name: str) -> tuple[Path, str]:
    match = re.fullmatch(r"(.+?)(?:@(v?\d+))?", name)
    assert match is not None, name
    return Path(match[1]), match[2] or ""
