"""Images for an ordinary user: one id, so every file is this user's; what needs more is refused."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

SCRIPT = r"""
import asyncio, os, sys
from quintain.errors import BuildError, CapabilityError, IsolationError
from quintain.sandbox.images.store import Store
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

launcher, base, archive = sys.argv[1:4]

async def said(backend, line, **spec):
    box = await backend.open(SandboxSpec(**spec))
    run = await box.exec(["sh", "-c", line])
    await box.close()
    return (run.text + run.error_text).split()

async def main():
    backend = NativeBackend(launcher=launcher, allow_weaker=True)
    try:
        await (await backend.open(SandboxSpec())).close()
    except IsolationError as error:
        print("namespaces", error)
        return
    # The host's view, with commands and packages of its own.
    spec = {"setup": ("id -u > /opt/who; echo x > /usr/local/bin/data",)}
    found = await said(backend, "cat /opt/who /usr/local/bin/data; id -u; touch /work/a", **spec)
    assert found == ["0", "x", "1000"], found
    found = await said(backend, "python3 -c 'import demo; print(demo.__file__)'; demo",
                       packages=("demo",))
    assert found[0].endswith("dist-packages/demo.py") and found[1] == "hello", found
    try:
        await backend.open(SandboxSpec(apt=("tree",)))
    except CapabilityError as error:
        assert "belong to root" in str(error), error
    else:
        raise AssertionError("apt over the host's view was not refused")
    # Folders and archives; deleted and replaced files of the base.
    text = f"FROM {base}\nWORKDIR /srv/app\nRUN rm /data; rm -r /gone; mkdir /gone; echo y > /new\n"
    line = "ls -d /data /gone/*; cat /new; id -u; pwd; touch here"
    found = await said(backend, line, dockerfile=text)
    assert found[:3] == ["y", "1000", "/srv/app"] and found.count("No") == 2, found
    line = "cat /data; id -u; stat -c %u /data"
    found = await said(backend, line, image=archive, user="postgres")
    assert found == ["of", "the", "base", "105", "105"], found
    assert sorted(entry.kind for entry in Store().entries()) == (
        ["archive", "layer", "layer", "layer", "view"])
    # Other owners cannot be had, and that is said.
    text = f"FROM {base}\nUSER postgres\nRUN true\n"
    try:
        await backend.open(SandboxSpec(dockerfile=text))
    except BuildError as error:
        assert "line 3" in str(error), error
    else:
        raise AssertionError("a second owner was not refused")
    await backend.close()
    for entry in Store().entries():
        assert Store().remove(entry.key)
    assert os.listdir(Store().folder / "making") == []
    print("fine")

asyncio.run(main())
"""


@pytest.mark.parametrize("launcher", ["auto", "python"])
def test_an_ordinary_user(as_ordinary_user, tiny, index, tmp_path, launcher, new_tar):
    from test_archives import docker_save

    for program in ("pip", "touch"):
        if not shutil.which(program):
            pytest.skip(f"no {program}")
    index("demo", script="demo", content="def main(): print('hello')\n")
    shared = tmp_path_for_all()
    try:
        root = shared / "root"
        shutil.copytree(tiny, root)
        (root / "gone").mkdir()
        (root / "gone/x").write_text("x")
        subprocess.run(["chown", "-R", "54321:54321", shared], check=True)
        archive = docker_save(new_tar, shared / "image.tar", [new_tar().tree(tiny).bytes()], {})
        shutil.copytree(tmp_path / "index", shared / "index")
        code = f"import os; os.environ.update(PIP_NO_INDEX='1', PIP_FIND_LINKS='{shared}/index')\n"
        done = as_ordinary_user(code + SCRIPT, launcher, str(root), str(archive))
    finally:
        shutil.rmtree(shared)
    assert done.returncode == 0, done.stdout + done.stderr
    if "namespaces" in done.stdout:
        pytest.skip(f"this host gives ordinary users no namespaces: {done.stdout}")
    assert done.stdout.endswith("fine\n")


def tmp_path_for_all():
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp(prefix="quintain-images-"))
    os.chmod(folder, 0o755)
    return folder
