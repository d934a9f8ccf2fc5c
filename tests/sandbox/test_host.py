"""Hosts on which no native sandbox can be: importing works, opening says what to do."""

from __future__ import annotations

import pytest

from quintain.errors import IsolationError
from quintain.sandbox import cgroups, host
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


def _blocked(why, advice):
    return host.Host(True, cgroups.Groups(0, {}, {}), why, advice)


async def test_another_system(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(IsolationError, match="container backend") as caught:
        await NativeBackend().open(SandboxSpec())
    assert caught.value.missing == ("namespaces",)
    assert not caught.value.retryable
    found = await NativeBackend().probe()
    assert not found.available
    assert "namespaces" in found.missing
    assert "container backend" in found.advice


async def test_user_namespaces_switched_off(monkeypatch):
    numbers = {"/proc/sys/user/max_user_namespaces": 0}
    monkeypatch.setattr(host, "_number", numbers.get)
    with pytest.raises(IsolationError, match=r"sysctl user\.max_user_namespaces"):
        await NativeBackend(allow_weaker=True).open(SandboxSpec())


async def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IsolationError, match="C compiler"):
        await NativeBackend(launcher="c").open(SandboxSpec())
    backend = NativeBackend()
    assert "quintain.sandbox.launcher" in backend._program()
