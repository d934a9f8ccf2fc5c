"""`quintain images`."""

from __future__ import annotations

import asyncio
import os

import pytest

from quintain.errors import IsolationError
from quintain.sandbox.images.store import Store
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    return Store()


@pytest.fixture
def base(tmp_path):
    root = tmp_path / "base"
    (root / "etc").mkdir(parents=True)
    (root / "etc/kept").write_text("x")
    return root


def test_add_build_list_prune(quintain, store, base, tmp_path):
    assert quintain("images").out == "no images yet\n"
    added = quintain("images", "add", "mine", str(base), "--json").json
    assert (added[0]["names"], added[0]["kind"], added[0]["source"]) == (
        ["mine"], "folder", str(base))  # fmt: skip
    file = tmp_path / "Dockerfile"
    file.write_text("FROM mine\nCOPY <<EOF /made\nx\nEOF\n")
    called = quintain("images", "build", str(file), "--name", "built", "--allow-weaker", "--json")
    if "namespaces" in called.err:
        pytest.skip(f"no native sandbox here: {called.err}")
    assert called.code == 0, called.err
    assert called.json[0]["names"] == ["built"]
    assert called.json[0]["size_bytes"] > 0
    assert "building image" in called.err
    listed = quintain("images", "list", "--json").json
    assert {name for row in listed for name in row["names"]} == {"mine", "built"}
    assert "dockerfile" in quintain("images").out
    called_wrong = quintain("images", "prune", "buit", "mine")
    assert (called_wrong.code, "did you mean built?" in called_wrong.err) == (2, True)
    assert set(store.names()) == {"mine", "built"}, "nothing goes then"
    # A named image stays until it is named, or everything goes.
    assert quintain("images", "prune", "--days", "0", "--json").json == {}
    assert "built" in store.names()
    removed = quintain("images", "prune", "built", "mine", "--json").json
    assert list(removed) == [called.json[0]["key"]]
    assert store.names() == {}
    assert (base / "etc/kept").exists()
    assert store.entries() == []


def test_what_is_used_is_not_removed(quintain, store, base):
    async def main():
        backend = NativeBackend(allow_weaker=True)
        text = f"FROM {base}\nCOPY --chmod=755 <<EOF /made\nx\nEOF\n"
        try:
            box = await backend.open(SandboxSpec(dockerfile=text, workdir="/w"))
        except IsolationError as error:
            pytest.skip(f"no native sandbox here: {error}")
        key = store.entries()[0].key
        held = await asyncio.to_thread(quintain, "images", "prune", "--all", "--json")
        shown = await asyncio.to_thread(quintain, "images", "prune", key[:8])
        rows = await asyncio.to_thread(quintain, "images", "list", "--json")
        assert await box.read("/made") == b"x\n"
        await box.close()
        await backend.close()
        return key, held.json, rows.json, shown.err

    key, held, rows, told = asyncio.run(main())
    assert held == {}
    assert "a running sandbox uses it" in told
    assert [(row["key"], row["in_use"]) for row in rows] == [(key, True)]
    assert list(quintain("images", "prune", key[:8], "--json").json) == [key]


def test_what_died_halfway_is_removed(quintain, store):
    store.make_folders()
    (store.folder / "making/0123/root").mkdir(parents=True)
    (store.folder / "making/0123/root").chmod(0)
    quintain("images", "prune")
    assert os.listdir(store.folder / "making") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "x"), "add NAME PATH"),
        (("add", "Bad Name", "/usr"), "cannot be an image's name"),
        (("add", "host", "/usr"), "cannot be an image's name"),
        (("add", "x", "/no/such"), "found nothing there"),
        (("build",), "build debian"),
        (("frobnicate",), "list"),
        (("prune", "no-such"), "no image has the name or key 'no-such'"),
    ],
)
def test_misuse(quintain, store, words, told):
    called = quintain("images", *words)
    assert called.code == 2
    assert told in called.err.replace("\n", " ")
