"""Images of engines: imported and built once; what cannot be is named."""

from __future__ import annotations

import asyncio
import tarfile

import pytest

from quintain.errors import CapabilityError, ConfigError, IsolationError, SandboxError
from quintain.registry import sandboxes
from quintain.task import SandboxSpec


async def _run(backend, script, **spec):
    box = await backend.open(SandboxSpec(**spec))
    run = await box.exec(["sh", "-c", script])
    await box.close()
    assert run.ok, run
    return run.text


async def _images(backend):
    use = await backend._use()
    found = await use.engine.call("GET", "/images/json")
    return sorted(name for one in found for name in one["RepoTags"] or ())


async def test_a_folder_is_a_read_only_base(engine, small_root):
    script = "cat /data/word; id -u; echo x > /tmp/y; cat /tmp/y; whoami; ! test -e /usr"
    text = await _run(engine, f"{script} && ! echo > /data/word", image=str(small_root))
    assert text == "of the image\n1000\nx\nsandbox\n"
    before = await _images(engine)
    other = sandboxes.get(engine.name)()
    await _run(other, "true", image=str(small_root))
    await other.close()
    assert await _images(engine) == before, "it was imported twice"


async def test_a_tar_of_a_root_file_system(engine, small_root, tmp_path):
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(small_root, arcname=".")
    assert await _run(engine, "cat /data/word", image=str(path)) == "of the image\n"


async def test_an_archive_of_images(engine, small_root, tmp_path):
    use = await engine._use()
    image = await use.images.get(SandboxSpec(image=str(small_root)))
    path = tmp_path / "saved.tar"
    async with use.engine._answer("GET", f"/images/{image.id}/get", 60) as answer:
        path.write_bytes(await answer.read())
    assert await _run(engine, "cat /data/word", image=str(path)) == "of the image\n"


async def test_a_recipe_is_built_once(engine, small_root):
    setup = ("echo built > /made", "test -w / && echo as root >> /made")
    spec = {"image": str(small_root), "setup": setup}
    texts = await asyncio.gather(*(_run(engine, "cat /made", **spec) for _ in range(3)))
    assert texts == ["built\nas root\n"] * 3
    before = await _images(engine)
    other = sandboxes.get(engine.name)()
    assert await _run(other, "cat /made", **spec) == texts[0]
    await other.close()
    assert await _images(engine) == before


async def test_a_dockerfile_with_its_files(engine, small_root, tmp_path):
    use = await engine._use()
    base = await use.images.get(SandboxSpec(image=str(small_root)))
    (tmp_path / "word").write_text("copied\n")
    text = f"FROM {base.id}\nENV GREETING=hello\nCOPY word /srv/word\nRUN cat /srv/word > /made\n"
    (tmp_path / "Dockerfile").write_text(text)
    spec = {"dockerfile": str(tmp_path / "Dockerfile")}
    assert await _run(engine, "cat /made; echo $GREETING", **spec) == "copied\nhello\n"


async def test_files_in_the_workdir_are_not_hidden(engine, small_root):
    """They lie on the engine's own disk then, which most storage drivers cannot cap."""
    spec = {"image": str(small_root), "workdir": "/data"}
    with pytest.raises(IsolationError, match="storage driver") as caught:
        await engine.open(SandboxSpec(**spec))
    assert caught.value.missing == ("disk_mb",)
    weaker = sandboxes.get(engine.name)(allow_weaker=True)
    script = "cat word; echo x > /tmp/y && cat /tmp/y"
    assert await _run(weaker, script, **spec) == "of the image\nx\n"
    await weaker.close()


async def test_a_failing_build_says_where(engine, small_root):
    spec = SandboxSpec(image=str(small_root), setup=("echo about to fail; exit 7",))
    with pytest.raises(SandboxError, match="7"):
        await engine.open(spec)


async def test_what_cannot_be_is_named(engine, tmp_path):
    with pytest.raises(ConfigError, match="no-such-folder"):
        await engine.open(SandboxSpec(image=str(tmp_path / "no-such-folder")))
    with pytest.raises(ConfigError, match=r"localhost:1/nothing"):
        await engine.open(SandboxSpec(image="localhost:1/nothing"))
    with pytest.raises(CapabilityError, match="image"):
        await engine.open(SandboxSpec(packages=("numpy",)))
    (tmp_path / "text").write_text("no tar")
    with pytest.raises(ConfigError, match="tar"):
        await engine.open(SandboxSpec(image=str(tmp_path / "text")))
