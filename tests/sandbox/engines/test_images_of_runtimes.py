"""Images of OCI runtimes: those of the native library, as overlays of read-only layers."""

from __future__ import annotations

import pytest

from quintain.errors import ConfigError
from quintain.task import SandboxSpec


async def _run(backend, script, **spec):
    box = await backend.open(SandboxSpec(**spec))
    run = await box.exec(["sh", "-c", script])
    await box.close()
    assert run.ok, run
    return run.text


async def test_a_folder_is_a_read_only_base(runtime, small_root):
    script = "cat /data/word; id -u; whoami; echo x > /tmp/y; cat /tmp/y; ! test -e /usr/bin"
    text = await _run(runtime, f"{script} && ! echo > /data/word", image=str(small_root))
    assert text == "of the image\n1000\nsandbox\nx\n"
    script = "test ! -e /tmp/y && cat word"
    assert await _run(runtime, script, image=str(small_root), workdir="/data") == "of the image\n"
    assert sorted(path.name for path in (small_root / "data").iterdir()) == ["word"]


@pytest.mark.parametrize("on", ["folder", "host"])
async def test_what_is_built_natively_is_a_layer(runtime, small_root, on, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = {"setup": ("echo built > /opt/made; mkdir -p /usr/local/share && "
                      "echo too > /usr/local/share/made",)}  # fmt: skip
    if on == "folder":
        spec["image"] = str(small_root)
        spec["setup"] = ("mkdir -p /opt", *spec["setup"])
    script = "cat /opt/made /usr/local/share/made; ! echo > /usr/local/share/made"
    assert await _run(runtime, script, **spec) == "built\ntoo\n"


async def test_a_missing_image_is_named(runtime, tmp_path):
    with pytest.raises(ConfigError, match="no-such-folder"):
        await runtime.open(SandboxSpec(image=str(tmp_path / "no-such-folder")))
