"""What a command is told, as one frozen model: from a TOML file, `--set`, and options.

The same file reruns a run: its resolved form is kept as `config.toml` in the run's folder.

::

    environment = "my_env.py:environment"
    seed = 0
    [policy]
    name = "chat"
    model = "Qwen3-8B"
    base_url = "http://localhost:8000/v1"
    [eval]
    samples = 4
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from quintain import registry
from quintain.config import load, to_toml
from quintain.errors import ConfigError, RegistryError
from quintain.loop import EvalSettings as Evaluation
from quintain.messages import Sampling
from quintain.protocols import Environment, Policy
from quintain.record import Json, Record
from quintain.sandbox.choose import Sandboxes
from quintain.task import Limits, Split
from quintain.training.config import TrainConfig

logger = logging.getLogger(__name__)

_SECRET = ("api_key", "headers")
"""Settings of a policy that may hold secrets: refused, because settings are stored."""


class PolicySettings(Record):
    """Who plays. Whatever else is given goes to the policy's function by name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str | None = None
    """A registered name, `path/to/file.py:attribute` or `module:attribute`; None: `chat` where a
    model is given."""
    model: str | None = None
    """The server's name of a model, or a folder with weights."""
    base_url: str | None = None
    checkpoint: str | None = None
    """`RUN` or `RUN@STEP`: weights from a training run."""

    @model_validator(mode="after")
    def _no_secrets(self) -> PolicySettings:
        for key in _SECRET:
            if key in self.options:
                raise ValueError(
                    f"{key} may hold a secret and settings are stored: name the environment "
                    "variable that holds it with policy.api_key_env"
                )
        return self

    @property
    def options(self) -> dict[str, Json]:
        """The further settings."""
        return dict(self.__pydantic_extra__ or {})


class EvalSettings(Record):
    """How to evaluate."""

    split: Split = Split.EVAL
    samples: int = Field(default=1, ge=1)
    """Of each task."""
    limit: int | None = Field(default=None, ge=1)
    """Tasks at most; None: all of the split."""
    concurrency: int = Field(default=16, ge=1)
    """Rollouts at once."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens after which no rollout is started."""


class Settings(Record):
    """Everything that a command can be told, and the defaults."""

    environment: str = ""
    options: dict[str, Json] = Field(default_factory=dict)
    """Arguments of the function that makes the environment."""
    policy: PolicySettings = PolicySettings()
    sampling: Sampling | None = None
    """What is named here replaces the environment's."""
    limits: Limits | None = None
    """The same; it then holds for every task."""
    seed: int = 0
    backend: str = "native"
    allow_weaker: bool = False
    sandboxes: Sandboxes = "fresh"
    """"fresh", "pooled" (single use), "reused" (reset and proved), or "auto": as measured."""
    retries: int = Field(default=2, ge=0)
    """Further attempts after a fault of the host."""
    eval: EvalSettings = EvalSettings()
    """Of `quintain eval`."""
    train: TrainConfig = TrainConfig()
    evaluation: Evaluation = Evaluation()
    """Of checkpoints, in `quintain train`."""
    evals: dict[str, str] = Field(default_factory=dict)
    """By what checkpoints are chosen: name to environment; none: the training environment."""

    def host(self) -> dict[str, Any]:
        """The arguments that go to `quintain.rollouts.Host`."""
        return {
            "limits": self.limits,
            "backend": self.backend,
            "allow_weaker": self.allow_weaker,
            "sandboxes": self.sandboxes,
            "retries": self.retries,
        }


def settings_from(
    *, file: Path | None, changes: Iterable[str] | None, values: Mapping[str, Json]
) -> Settings:
    """The settings of a command: file, then `--set`, then its options."""
    return load(Settings, file=file, changes=changes or (), values=values)


def resolved(settings: Settings, environment: Environment) -> Settings:
    """The settings with the environment's sampling and limits filled in where some were named.

    Training samples and is seeded like everything else, unless `train` says otherwise.
    """
    sampling = _over(environment.sampling, settings.sampling)
    train = settings.train
    of_train: dict[str, Any] = {"sampling": _over(sampling, train.sampling)}
    if "seed" not in train.model_fields_set:
        of_train["seed"] = settings.seed
    changed: dict[str, Any] = {"sampling": sampling, "train": train.model_copy(update=of_train)}
    if settings.limits is not None:
        changed["limits"] = _over(environment.limits, settings.limits)
    return settings.model_copy(update=changed)


def _over(base: Any, change: Record | None) -> Any:
    """`base` with the fields that were really given in `change`."""
    if change is None:
        return base
    given = {name: getattr(change, name) for name in change.model_fields_set}
    return base.model_copy(update=given)


def record(settings: Settings, command: Mapping[str, Json]) -> dict[str, Json]:
    """What is stored with a run, besides versions and commit: settings, and what was typed."""
    kept = settings.model_dump(mode="json", exclude_none=True)
    return {"settings": kept, "command": dict(command)}


def write_config(folder: Path, settings: Settings) -> None:
    """Keeps the resolved settings as `config.toml` in a run's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(to_toml(settings), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be a run's folder: {error.strerror}") from error


def refuse_other_policy(folder: Path, settings: Settings) -> None:
    """Raises ConfigError when a run to be resumed was begun with a policy set up otherwise.

    Another address is let through with a warning: servers move.
    """
    file = folder / "config.toml"
    if not file.exists():
        return
    begun = load(Settings, file=file, changes=(), values={}).policy.model_dump(mode="json")
    now = settings.policy.model_dump(mode="json")
    for key in sorted({*begun, *now}):
        old, new = begun.get(key), now.get(key)
        if old == new:
            continue
        said = f"policy.{key} was {old!r} and is {new!r} now"
        if key != "base_url":
            raise ConfigError(f"cannot resume {folder}: {said}; use another folder")
        logger.warning("resuming %s: %s", folder, said)


# --- what the names mean --------------------------------------------------------------------------


def named_object(name: str, table: registry.Registry) -> Any:
    """What a registered name, `path/to/file.py:attribute` or `module:attribute` stands for."""
    path, _, attribute = name.rpartition(":")
    if name.endswith(".py"):
        return _only_environment(name)
    if path.endswith(".py"):
        return registry.load_file(path, attribute)
    return table.get(name)


def _only_environment(path: str) -> Any:
    """The file's `environment`, or the one Environment that it holds by another name."""
    try:
        return registry.load_file(path, "environment")
    except RegistryError:
        module = sys.modules.get(Path(path).stem)
        found = [each for each in vars(module or object).values() if isinstance(each, Environment)]
        if len(found) != 1:
            raise
        return found[0]


def make_environment(name: str, options: Mapping[str, Json]) -> Environment:
    """The environment of that name.

    Args:
        name: see `named_object`.
        options: arguments of the function that makes it.

    Raises:
        ConfigError: none is named, or what is named is none.
        RegistryError: the name leads nowhere.
    """
    if not name:
        raise ConfigError(
            "no environment: give a name from `quintain list`, path/to/file.py:attribute, or "
            "module:attribute"
        )
    found = named_object(name, registry.environments)
    if not isinstance(found, Environment) and callable(found):
        found = _call(found, options, f"environment {name}", "options")
    elif options:
        raise ConfigError(
            f"{name} is an environment and takes no options; got options {', '.join(options)}"
        )
    if not isinstance(found, Environment):
        raise ConfigError(
            f"{name} is a {type(found).__name__}; expected an Environment or a function that "
            "returns one"
        )
    return found


def make_policy(settings: PolicySettings) -> Policy:
    """The policy that the settings name.

    Raises:
        ConfigError: none is named, something is missing, or an option that it does not take.
    """
    name = settings.name or ("chat" if settings.model or settings.base_url else None)
    if name is None:
        raise ConfigError(
            "no policy: give --model NAME --base-url URL for a served model, or --policy NAME "
            "(see `quintain list`; `smollm2` is a small model that runs here)"
        )
    options = settings.options
    if name == "chat":
        if settings.model is None:
            raise ConfigError("--policy chat needs --model, the server's name of the model")
        options["model"] = settings.model
        if settings.base_url is not None:
            options["base_url"] = settings.base_url
        else:
            logger.warning("no --base-url: %s is asked for at OpenAI's own server", settings.model)
    elif settings.base_url is not None:
        raise ConfigError(f"--base-url goes with a served model, not with policy {name!r}")
    elif name == "local":
        if settings.model is None:
            raise ConfigError("--policy local needs --model, a folder with weights")
        name, options["source"] = "quintain.policies.local:local", settings.model
    elif settings.model is not None:
        raise ConfigError(f"policy {name!r} takes no --model; did you mean --policy local?")
    found = named_object(name, registry.policies)
    if inspect.isclass(found) or not isinstance(found, Policy):
        found = _call(found, options, f"policy {name}", "policy")
    if not isinstance(found, Policy):
        raise ConfigError(f"{name} is a {type(found).__name__}; expected a Policy")
    return found


def _call(function: Any, options: Mapping[str, Json], what: str, prefix: str) -> Any:
    """The function's result; an argument that it does not take is named with those it does."""
    if not callable(function):
        raise ConfigError(
            f"{what} is a {type(function).__name__}; expected a function or an object"
        )
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in options:
        if name not in known and not anything:
            raise ConfigError(
                f"{what} takes no setting {prefix}.{name}; it takes: "
                f"{', '.join(f'{prefix}.{k}' for k in known) or 'none'}"
            )
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and p.name not in options
    ]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(f'--set {prefix}.{m}=…' for m in missing)}")
    try:
        return function(**options)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        given = ", ".join(f"{prefix}.{name}={value!r}" for name, value in options.items())
        raise ConfigError(f"{what} with {given or 'no settings'}: {error}") from error
