"""Settings: file, changes, values; errors that name the place; the text back."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from quintain.config import git_state, load, parse_change, provenance, to_toml
from quintain.errors import ConfigError
from quintain.record import Record


class Inner(Record):
    group_size: int = Field(default=8, ge=2)
    lr: float | None = None
    names: tuple[str, ...] = ()


class Settings(Record):
    environment: str = "arithmetic"
    seed: int = 0
    train: Inner = Inner()
    eval: Inner | None = None


def test_later_sources_win(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('environment = "mine"\nseed = 3\n[train]\ngroup_size = 4\nlr = 0.1\n')
    settings = load(
        Settings,
        file=file,
        changes=["train.group_size=16", "seed=5"],
        values={"seed": 7, "environment": None, "train": {"lr": None}},
    )
    assert settings.environment == "mine"
    assert settings.seed == 7
    assert settings.train == Inner(group_size=16, lr=0.1)


@pytest.mark.parametrize(
    ("change", "value"),
    [("a.b=8", 8), ("a.b=0.5", 0.5), ("a.b=true", True), ("a.b=[1, 2]", [1, 2]),
     ('a.b="8"', "8"), ("a.b=plain words", "plain words"), ("a.b=", ""), ("a.b=x=y", "x=y")],
)  # fmt: skip
def test_a_change_is_toml_or_text(change: str, value: object):
    assert parse_change(change) == (("a", "b"), value)


@pytest.mark.parametrize("change", ["a.b", "=3", "a..b=3", ""])
def test_a_change_without_key_or_value_is_refused(change: str):
    with pytest.raises(ConfigError, match=r"key\.key=value"):
        parse_change(change)


def test_an_error_names_file_key_expected_and_got(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('[train]\ngroup_size = "many"\n')
    with pytest.raises(ConfigError) as caught:
        load(Settings, file=file)
    message = str(caught.value)
    assert str(file) in message
    assert "train.group_size" in message
    assert "valid integer" in message
    assert "'many'" in message


def test_an_error_in_a_change_names_the_change():
    with pytest.raises(ConfigError, match=r"--set train.group_size=1: train.group_size: .*got 1"):
        load(Settings, changes=["train.group_size=1"])


@pytest.mark.parametrize(
    ("change", "hint"),
    [("train.groupsize=3", "did you mean group_size"), ("sed=1", "did you mean seed"),
     ("eval.group=3", "did you mean group_size"), ("zzz=1", "known: environment")],
)  # fmt: skip
def test_an_unknown_setting_names_the_nearest(change: str, hint: str):
    with pytest.raises(ConfigError, match=hint):
        load(Settings, changes=[change])


def test_all_errors_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load(Settings, changes=["train.group_size=1", "seed=x"])
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load(Settings, file=tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"broken.toml is not TOML.*line 1"):
        load(Settings, file=broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(Settings, file=broken)


def test_the_text_back_gives_the_same_settings(tmp_path: Path):
    settings = load(Settings, changes=["train.names=['a', 'b.c']", "eval.lr=1e-5", "seed=9"])
    file = tmp_path / "resolved.toml"
    file.write_text(to_toml(settings))
    assert load(Settings, file=file) == settings


_plain = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dates()
)
_values = st.recursive(
    _plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), _values, max_size=4))
def test_toml_round_trip(values: dict[str, object]):
    assert tomllib.loads(to_toml(values)) == values


def test_provenance_names_versions_and_commit(tmp_path: Path):
    found = provenance()
    assert found["versions"]["quintain"]
    assert found["python"]
    assert git_state(tmp_path) is None
    run = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run([*run, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*run, "add", "file"], check=True)
    subprocess.run([*run, "commit", "-qm", "first"], check=True)
    state = git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["changed"] is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path)["changed"] is True
