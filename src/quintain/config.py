"""Configuration: a TOML file, changes by dotted keys, one frozen model; and the text of it back.

::

    settings = load(Settings, file="run.toml", changes=["train.group_size=8"])
    print(to_toml(settings))       # resolved; loading this text gives the same settings

A value in a change is read as TOML (`8`, `true`, `[1, 2]`, `"text"`), or taken as text where it is
not TOML. Nothing is read from environment variables. A wrong setting is an error that names the
file, the key, what was expected and what came.
"""

from __future__ import annotations

import difflib
import json
import math
import platform
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from quintain.errors import ConfigError
from quintain.record import Json

M = TypeVar("M", bound=BaseModel)

_TRACKED = ("quintain", "numpy", "pydantic", "aiohttp", "torch", "transformers")
"""Distributions whose versions are kept with a run, where installed."""


def load(
    model: type[M],
    *,
    file: str | Path | None = None,
    changes: Iterable[str] = (),
    values: Mapping[str, Json] | None = None,
) -> M:
    """The settings from a file, then dotted changes, then given values; later ones win.

    Args:
        model: what the settings are validated into.
        file: TOML; None: the model's defaults.
        changes: `"train.group_size=8"`.
        values: nested; whatever is None in it counts as not given.

    Raises:
        ConfigError: naming the file, the key, what was expected and what came.
    """
    data: dict[str, Any] = {}
    sources: dict[tuple[str, ...], str] = {}
    if file is not None:
        _merge(data, _read(Path(file)), sources, str(file))
    for change in changes:
        path, value = parse_change(change)
        _merge(data, _nested(path, value), sources, f"--set {change}")
    _merge(data, _without_none(values or {}), sources, "the command line")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, model, sources)) from error


def parse_change(text: str) -> tuple[tuple[str, ...], Json]:
    """A dotted change as its path and value.

    Raises:
        ConfigError: it has no `=`, or an empty key.
    """
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"a change is written key.key=value, got {text!r}")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path, value.strip()


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _nested(path: Sequence[str], value: Json) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _without_none(values: Mapping[str, Json]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = _without_none(value)
            if inner:
                cleaned[key] = inner
        elif value is not None:
            cleaned[key] = value
    return cleaned


def _merge(
    into: dict[str, Any],
    given: Mapping[str, Any],
    sources: dict[tuple[str, ...], str],
    source: str,
    path: tuple[str, ...] = (),
) -> None:
    for key, value in given.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            inner = into.get(key)
            if not isinstance(inner, dict):
                inner = into[key] = {}
                sources[here] = source
            _merge(inner, value, sources, source, here)
        else:
            into[key] = value
            sources[here] = source


def _explain(
    error: ValidationError, model: type[BaseModel], sources: Mapping[tuple[str, ...], str]
) -> str:
    lines = []
    for item in error.errors(include_url=False):
        path = tuple(str(part) for part in item["loc"])
        known = [sources[path[:n]] for n in range(len(path), 0, -1) if path[:n] in sources]
        where = known[0] if known else "settings"
        key = ".".join(path) or "settings"
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: there is no setting {key!r}{_near(model, path)}")
        elif item["type"] == "missing":
            lines.append(f"{where}: {key} is missing")
        else:
            expected = item["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {key}: {expected}, got {item['input']!r}")
    return "\n".join(dict.fromkeys(lines))


def _near(model: type[BaseModel], path: Sequence[str]) -> str:
    """The names that could have been meant, for a key that is none."""
    fields = model.model_fields
    for part in path[:-1]:
        inner = _model_in(fields[part].annotation) if part in fields else None
        if inner is None:
            return ""
        fields = inner.model_fields
    near = difflib.get_close_matches(path[-1], fields, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(fields)}"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation (`X`, `X | None`) speaks of."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


# --- the text back --------------------------------------------------------------------------------


def to_toml(settings: BaseModel | Mapping[str, Json]) -> str:
    """The settings as TOML; what is None is left out, since TOML has no word for it.

    Raises:
        ConfigError: a value that TOML cannot say.
    """
    values = settings.model_dump(mode="json") if isinstance(settings, BaseModel) else dict(settings)
    lines: list[str] = []
    _table(lines, values, ())
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(lines: list[str], values: Mapping[str, Any], path: tuple[str, ...]) -> None:
    inner = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    plain = {k: v for k, v in values.items() if k not in inner and v is not None}
    if path and (plain or not inner):
        lines.extend(["", f"[{'.'.join(_key(part) for part in path)}]"])
    lines.extend(f"{_key(key)} = {_value(value)}" for key, value in plain.items())
    for key, value in inner.items():
        _table(lines, value, (*path, key))


def _key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else _text(key)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value if item is not None) + "]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return "{" + pairs + "}"
    raise ConfigError(f"TOML cannot say a {type(value).__name__}: {value!r}")


# --- what a run was made with ---------------------------------------------------------------------


def provenance() -> dict[str, Json]:
    """What is stored with every run: versions, machine, and the commit of the working folder."""
    return {
        "versions": {name: version for name in _TRACKED if (version := _version(name)) is not None},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": git_state(Path.cwd()),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Json] | None:
    """The commit that `folder` stands at, and whether files differ from it; None: no repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
