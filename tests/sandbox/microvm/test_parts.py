"""What needs no virtual machine: frames, the RAM disk, layers, steps, refusals."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess

import pytest

from quintain.errors import CapabilityError, ConfigError, IsolationError
from quintain.sandbox.images.image import Image, Tree, of_folder
from quintain.sandbox.microvm import archive, frames, kernel, layers, layout, templates
from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.sandbox.microvm.guest import Running
from quintain.sandbox.microvm.machine import Hardware
from quintain.task import SandboxSpec


def test_words_are_length_bytes_and_nul():
    body = frames.words(["ab", b"\x00\xff", 7])
    assert body == b"\2\0\0\0ab\0" + b"\2\0\0\0\x00\xff\0" + b"\1\0\0\x007\0"
    whole = frames.frame(frames.EXEC, 9, body)
    assert frames.HEAD.unpack_from(whole) == (len(body), 9, frames.EXEC)


def test_an_ending_is_as_long_as_the_agent_says():
    body = struct.pack("<iiBBQII", 9, 0, 0, frames.TIMED_OUT, 5, 1, 2)
    found = frames.ending(body)
    assert (found.status, found.flags, found.cpu_us, found.ooms, found.refused) == (9, 1, 5, 1, 2)


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio on the PATH")
def test_the_archive_is_one_that_cpio_reads(tmp_path):
    data = archive.pack(b"agent", {"b.ko": b"second" * 3, "a.ko": b"first"})
    run = subprocess.run(
        ["cpio", "-idm", "--no-preserve-owner", "--quiet", "-f", "dev/*"],
        input=data,
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert run.stderr == b""
    assert (tmp_path / "init").read_bytes() == b"agent"
    assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "modules" / "order").read_text() == "b.ko\na.ko\n"
    assert (tmp_path / "modules" / "b.ko").read_bytes() == b"second" * 3


def test_archive_entries_are_aligned():
    data = archive.pack(b"x", {"one.ko": b"yyy"})
    at = names = 0
    while at < len(data):
        assert at % 4 == 0
        assert data[at : at + 6] == b"070701"
        size, length = int(data[at + 54 : at + 62], 16), int(data[at + 94 : at + 102], 16)
        names += 1
        at += -(-(110 + length) // 4) * 4
        at += -(-size // 4) * 4
    assert names == 7, "five of the agent, one module, the trailer"


def test_a_missing_kernel_is_refused_by_name(tmp_path):
    with pytest.raises(IsolationError, match=r"microvm\.kernel") as found:
        kernel.find(tmp_path)
    assert found.value.missing == ("kernel",)


def test_modules_keep_their_order(tmp_path):
    (tmp_path / "modules").mkdir()
    (tmp_path / "vmlinuz").write_bytes(b"")
    for name in ("overlay", "virtio", "squashfs"):
        (tmp_path / "modules" / f"{name}.ko").write_bytes(b"")
    found = kernel.find(tmp_path)
    assert [file.stem for file in found.modules] == ["virtio", "squashfs", "overlay"]


@pytest.mark.parametrize(
    ("path", "candidate"),
    [
        ("/usr/lib/jvm/java/lib/modules", "/usr/lib/jvm"),
        ("/usr/local/lib/node/x", "/usr/local/lib/node"),
        ("/usr/local/cuda/lib64/x", "/usr/local/cuda"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", ""),
        ("/usr/lib/python3.11/os.py", ""),
        ("/usr/bin/python3", ""),
    ],
)
def test_only_folders_that_programs_do_without_are_left_out(path, candidate):
    assert layers._candidate(path) == candidate


@pytest.fixture
def small_layers(tmp_path, monkeypatch):
    """Layers are made in a folder of the test."""
    if shutil.which(layers.PROGRAM) is None:
        pytest.skip("no mksquashfs: apt-get install squashfs-tools")
    monkeypatch.setattr(layers, "folder", lambda: tmp_path / "cache")
    image = tmp_path / "image"
    image.mkdir()
    (image / "a").write_text("one")
    return image


def test_a_layer_is_made_once_per_content(small_layers):
    image = of_folder(str(small_layers))
    (first,) = layers.of(image)
    made = first.stat().st_ino
    assert layers.of(image)[0].stat().st_ino == made
    (small_layers / "a").write_text("other")
    (second,) = layers.of(image)
    assert second != first
    assert sorted(file.suffix for file in first.parent.iterdir()) == [".squashfs"] * 2


@pytest.mark.parametrize("limit", [40, 200, 1001])
@pytest.mark.parametrize("total", [30, 199, 1000, 5000, 100_000])
async def test_a_long_output_keeps_head_and_tail(limit, total):
    """As the agent tells it: up to the limit at once, then the last half of a limit."""
    whole = bytes(i % 251 for i in range(total))
    running = Running(None, 1, limit)
    running.told(frames.OUT, whole[:limit])
    if total > limit:
        tail = whole[limit:][-(limit // 2 + 1) :]
        running.told(frames.OUT_TAIL, frames.TOTAL.pack(total - limit) + tail)
    found = running.out
    assert found.truncated == (total > limit)
    assert len(found.data) == min(limit, total)
    if total <= limit:
        assert found.data == whole
    elif b"cut" in found.data:
        head, _, rest = found.data.partition(b"\n... ")
        number, _, tail = rest.partition(b" bytes cut ...\n")
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert len(head) + int(number) + len(tail) == total


def test_steps_end_in_the_new_root_and_hold_every_limit():
    spec = SandboxSpec(memory_mb=100, disk_mb=28, max_pids=7, cpus=0.5, workdir="/a/b")
    trees = (Tree("/", ("/upper", "/lower")), Tree("/usr", ("/usr",)), Tree("/x", ("/a", "/b")))
    steps = layout.steps(spec, Image("key", trees))
    assert steps[-1] == ("enter", "/box")
    assert ("write", "/groups/box/memory.max", 128 << 20) in steps
    assert ("write", "/groups/box/pids.max", 7) in steps
    assert ("write", "/groups/box/cpu.max", "50000 100000") in steps
    assert ("mount", "/dev/vdb", "/layers/1", "squashfs", 7, "") in steps
    options = "lowerdir=/layers/0:/layers/1,upperdir=/disk/upper,workdir=/disk/work"
    assert ("mount", "overlay", "/box", "overlay", 6, options) in steps
    assert ("mount", "/layers/2", "/box/usr", "", 4096, "") in steps
    assert ("mount", "overlay", "/box/x", "overlay", 7, "lowerdir=/layers/3:/layers/4") in steps
    assert ("mkdir", "/box/a/b", "0755", 1000) in steps
    assert ("folder", "/box/a", "0755", 1000) in steps
    many = Image("key", (Tree("/", tuple(f"/{n}" for n in range(30))),))
    with pytest.raises(CapabilityError, match="more than 20 layers"):
        layout.steps(spec, many)
    assert layout.memory_mb(spec) == 128 + layout.OVERHEAD_MB
    assert layout.processors(spec) == 1


def test_a_template_is_of_its_hardware_and_steps(tmp_path, monkeypatch):
    qemu = tmp_path / "qemu"
    qemu.write_bytes(b"")
    monkeypatch.setattr(templates, "program", lambda: str(qemu))
    hardware = Hardware("tcg", "q35", qemu, qemu, (), 100, 1)
    one = templates.path(hardware, [("mkdir", "/a", "0755", 0)])
    assert one == templates.path(hardware, [("mkdir", "/a", "0755", 0)])
    assert one != templates.path(hardware, [("mkdir", "/b", "0755", 0)])
    larger = Hardware("tcg", "q35", qemu, qemu, (), 101, 1)
    assert one != templates.path(larger, [("mkdir", "/a", "0755", 0)])


def test_a_template_outlives_the_use_of_its_disks_and_not_their_remaking(
    small_layers, tmp_path, monkeypatch
):
    qemu = tmp_path / "qemu"
    qemu.write_bytes(b"")
    monkeypatch.setattr(templates, "program", lambda: str(qemu))
    (disk,) = layers.of(of_folder(str(small_layers)))
    hardware = Hardware("tcg", "q35", qemu, qemu, (disk,), 100, 1)
    one = templates.path(hardware, [])
    os.utime(disk, (1, 1))
    assert layers.of(of_folder(str(small_layers))) == [disk], "which is noted as its time"
    assert templates.path(hardware, []) == one
    whole = bytearray(disk.read_bytes())
    whole[8] ^= 1  # the time at which it was made
    disk.write_bytes(whole)
    assert templates.path(hardware, []) != one


def test_the_machine_has_no_network_and_no_host_device():
    words = Hardware("tcg", "q35", "/k", "/i", ("/d",), 100, 2).arguments()
    for word in ("-nodefaults", "-no-user-config", "-no-reboot", "-S"):
        assert word in words
    text = " ".join(words)
    assert "net" not in text.replace("magnet", "")
    assert "vfio" not in text
    assert "usb=off" in text
    assert "read-only=on" in text
    assert "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny" in text


@pytest.mark.parametrize(
    ("spec", "kind", "what"),
    [
        (SandboxSpec(dockerfile="ARG"), ConfigError, "ARG"),
        (SandboxSpec(image="/nowhere/at/all"), ConfigError, "/nowhere/at/all"),
    ],
)
async def test_a_wrong_image_is_refused_by_name(spec, kind, what):
    with pytest.raises(kind, match=what):
        await MicrovmBackend().open(spec)
