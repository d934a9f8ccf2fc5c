"""Folders of containers, listed by the agent: nothing that the candidate runs has a word in it."""

from __future__ import annotations

import pytest

SCRIPT = """
mkdir -p out/deep; cd out; ln -s /etc/passwd link; ln -s . loop; mkfifo pipe; mkdir -m 700 empty
printf 12345 > deep/b; chmod 600 deep/b; touch "new
line"
"""


async def test_what_lies_in_a_folder(box):
    assert (await box.exec(["sh", "-c", SCRIPT])).ok
    assert "list" in box.capabilities
    entries = await box.entries("out")
    found = {entry.path: (entry.kind, oct(entry.mode), entry.size) for entry in entries}
    assert {found.pop(name)[0] for name in ("link", "loop")} == {"link"}
    assert found == {
        "deep": ("folder", "0o755", 0),
        "deep/b": ("file", "0o600", 5),
        "empty": ("folder", "0o700", 0),
        "new\nline": ("file", "0o644", 0),
        "pipe": ("other", "0o644", 0),
    }
    assert {entry.target for entry in entries} == {"", "/etc/passwd", "."}
    assert [entry.path for entry in entries] == sorted(entry.path for entry in entries)


async def test_what_is_refused(box):
    deep = "/".join(["d"] * 150)
    await box.exec(["sh", "-c", f"mkdir -p many deep/{deep}; touch many/a many/b file"])
    with pytest.raises(OSError, match="more than 1 entries"):
        await box.entries("many", max_entries=1)
    with pytest.raises(OSError, match="deeper"):
        await box.entries("deep")
    with pytest.raises(FileNotFoundError):
        await box.entries("nothing")
    with pytest.raises(NotADirectoryError):
        await box.entries("file")


async def test_many_entries_come_whole(box):
    script = "mkdir many; i=0; while [ $i -lt 3000 ]; do : > many/a-rather-long-name-$i; "
    await box.exec(["sh", "-c", script + "i=$((i+1)); done"], timeout_s=60)
    assert len(await box.entries("many")) == 3000
