"""A folder's list comes from outside: nothing that runs inside can colour it."""

import pytest


async def test_what_lies_in_a_folder(box):
    await box.write("out/a/b.txt", b"12345", mode=0o600)
    script = "cd out; ln -s /etc/passwd link; mkfifo pipe; mkdir -m 700 empty"
    assert (await box.exec(["sh", "-c", script])).ok
    found = {entry.path: (entry.kind, oct(entry.mode), entry.size) for entry in await listed(box)}
    assert found.pop("link")[0] == "link"
    assert found == {
        "a": ("folder", "0o755", 0),
        "a/b.txt": ("file", "0o600", 5),
        "empty": ("folder", "0o700", 0),
        "pipe": ("other", "0o644", 0),
    }
    (link,) = [entry for entry in await listed(box) if entry.kind == "link"]
    assert link.target == "/etc/passwd"


async def listed(box, path="out", **options):
    return await box.entries(path, **options)


async def test_what_is_refused(box):
    await box.write("out/a", b"1")
    await box.write("out/b", b"1")
    with pytest.raises(OSError, match="more than 1 entries"):
        await listed(box, max_entries=1)
    with pytest.raises(FileNotFoundError):
        await listed(box, "nothing")
    with pytest.raises(OSError, match="out/a"):
        await listed(box, "out/a")
    with pytest.raises(OSError, match="out"):
        await box.read("out")


async def test_a_link_to_a_folder_is_not_entered(box):
    await box.exec(["sh", "-c", "mkdir out; ln -s / out/root; ln -s . out/loop"])
    assert [entry.kind for entry in await listed(box)] == ["link", "link"]


async def test_a_deep_tree_is_refused(box):
    deep = "/".join(["d"] * 150)
    assert (await box.exec(["mkdir", "-p", f"out/{deep}"])).ok
    with pytest.raises(OSError, match="deeper"):
        await listed(box)


async def test_odd_names_and_a_command_that_lies(box):
    script = r"""mkdir out; cd out; touch "$(printf 'a\377')" "new
line"; mkdir -p ../bin; printf '#!/bin/sh\n' > ../bin/ls; chmod +x ../bin/ls"""
    assert (await box.exec(["sh", "-c", script])).ok
    assert [entry.path for entry in await listed(box)] == ["a\\xff", "new\nline"]
