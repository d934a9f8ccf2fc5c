"""From what was typed to what runs, and back to a line to type again."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quintain.cli import checkpoints
from quintain.cli.settings import (
    Settings,
    make_environment,
    make_policy,
    resolved,
    settings_from,
)
from quintain.errors import ConfigError
from quintain.protocols import Environment, Policy
from quintain.record import Json
from quintain.task import Split, Task

FLAGS = {
    ("policy", "name"): "--policy",
    ("policy", "model"): "--model",
    ("policy", "base_url"): "--base-url",
    ("policy", "checkpoint"): "--checkpoint",
    ("sampling", "temperature"): "--temperature",
    ("backend",): "--backend",
    ("allow_weaker",): "--allow-weaker",
}
"""Settings that decide how a sample comes out, and the options that say them."""

LOOKED_AT = (Split.EVAL, Split.TRAIN, Split.HELDOUT)
"""Where a task is looked for when no split is named."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    settings: Settings
    """Resolved."""
    environment: Environment
    policy: Policy
    typed: tuple[str, ...]
    """The options that decide how a sample comes out, as `run` takes them."""

    @property
    def command(self) -> dict[str, Json]:
        """For the line that reproduces a sample."""
        return {"environment": self.settings.environment, "options": list(self.typed)}

    def line(self, verb: str, *more: str) -> str:
        """A command line that says the same again."""
        words = ("quintain", verb, self.settings.environment, *self.typed, *more)
        return shlex.join(words)


def session(
    values: Mapping[str, Json], *, file: Path | None, changes: Iterable[str] | None
) -> Session:
    """Reads the settings and makes environment and policy.

    Args:
        values: what the options said, nested as the settings are; None: not said.
        file: TOML.
        changes: dotted.
    """
    changes = list(changes or ())
    settings = settings_from(file=file, changes=changes, values=values)
    return prepare(settings, typed(values, file=file, changes=changes))


def prepare(settings: Settings, typed: Sequence[str]) -> Session:
    """Makes what the settings name.

    Args:
        settings: as given.
        typed: the options that say the same to `run`.
    """
    environment = make_environment(settings.environment, settings.options)
    if settings.policy.checkpoint is not None and settings.policy.name is None:
        known = checkpoints.settings_of(settings.policy.checkpoint)
        settings = settings.model_copy(update={"policy": known})
    policy = make_policy(settings.policy)
    return Session(
        settings=resolved(settings, environment),
        environment=environment,
        policy=policy,
        typed=tuple(typed),
    )


def typed(
    values: Mapping[str, Json], *, file: Path | None, changes: Iterable[str]
) -> tuple[str, ...]:
    """The options that decide how a sample comes out, as they were typed."""
    words: list[str] = []
    if file is not None:
        words += ["--config", str(file)]
    for change in changes:
        words += ["--set", change]
    for path, flag in FLAGS.items():
        value: Json = values
        for key in path:
            value = (value or {}).get(key)
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return tuple(words)


def first_task(environment: Environment, splits: Sequence[Split] = LOOKED_AT) -> Task:
    """The first task of the first split that has one.

    Raises:
        ConfigError: none has.
    """
    for split in splits:
        found = next(iter(environment.tasks.split(split)), None)
        if found is not None:
            return found
    raise ConfigError(f"{environment.name} has no tasks in {', '.join(map(str, splits))}")


@asynccontextmanager
async def ready(policy: Policy, checkpoint: str | None = None) -> AsyncIterator[Policy]:
    """The policy, with a checkpoint's weights if one is named.

    Its processes and connections end when the block ends, however it ends.
    """
    try:
        if checkpoint is not None:
            await checkpoints.load(policy, checkpoint)
        yield policy
    finally:
        close = getattr(policy, "close", None)
        if close is not None:
            await close()
