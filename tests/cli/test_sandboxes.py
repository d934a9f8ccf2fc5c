"""`--sandboxes`: how a run gets its sandboxes, said once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quintain.errors import IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

ARGUMENTS = ("eval", "python", "--policy", "scripted", "--set", "policy.script=no", "--limit", "2")


@pytest.fixture
def possible():
    async def try_one():
        backend = NativeBackend()
        try:
            await (await backend.open(SandboxSpec())).close()
        finally:
            await backend.close()

    try:
        asyncio.run(try_one())
    except IsolationError as error:
        pytest.skip(f"no native sandbox here: {error}")


def test_what_was_chosen_is_printed_with_its_reason(quintain, possible):
    called = quintain(*ARGUMENTS, "--sandboxes", "auto", "--out", "there")
    (line,) = [line for line in called.out.splitlines() if line.startswith("sandboxes ")]
    assert "a fresh sandbox takes" in line
    assert "auto" in Path("there/config.toml").read_text()


def test_a_policy_that_there_is_not_is_refused_by_name(quintain):
    called = quintain(*ARGUMENTS, "--sandboxes", "sometimes")
    assert called.code == 2
    assert "sandboxes" in called.err
    assert "pooled" in called.err
