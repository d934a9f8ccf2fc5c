"""A store of its own for every test, a tiny base made of the host's programs."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile

import pytest

from quintain.errors import IsolationError
from quintain.sandbox.images.store import Store
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

PROGRAMS = ("sh", "cat", "ls", "id", "rm", "chmod", "chown", "mkdir", "touch", "ln", "sleep",
            "stat", "mkfifo", "env", "dd", "head", "find")  # fmt: skip


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store of this test; processes that it starts use it, too."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    return Store()


@pytest.fixture(params=["c", "python"])
async def backend(request, store):
    """A backend over each launcher."""
    async for one in _backend(request.param):
        yield one


@pytest.fixture
async def one_backend(store):
    """A backend over whatever launcher there is."""
    async for one in _backend("auto"):
        yield one


async def _backend(launcher):
    backend = NativeBackend(launcher=launcher)
    try:
        await (await backend.open(SandboxSpec())).close()
    except IsolationError as error:
        await backend.close()
        pytest.skip(f"no native sandbox here: {error}")
    yield backend
    await backend.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A small root file system: a shell, a few programs and what they need."""
    root = tmp_path_factory.mktemp("tiny") / "root"
    for name in PROGRAMS:
        program = shutil.which(name)
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for file in [program, *(word for word in told.split() if word.startswith("/"))]:
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(file), target)
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy(root / shutil.which("sh").lstrip("/"), root / "bin" / "sh")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\npostgres:x:105:107:p:/var/lib/postgres:/bin/sh\n"
    )
    (root / "etc/group").write_text("root:x:0:\npostgres:x:107:\nstaff:x:50:\n")
    (root / "var/lib/postgres").mkdir(parents=True)
    (root / "data").write_text("of the base\n")
    if os.geteuid() == 0:
        os.chown(root / "var/lib/postgres", 105, 107)
    return root


class Tar:
    """A tar made entry by entry."""

    def __init__(self):
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115

    def add(self, name, data=b"", *, kind=tarfile.REGTYPE, link="", mode=0o644, uid=0, device=None):
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.mode = kind, link, mode
        member.uid = member.gid = uid
        member.size = len(data)
        if device:
            member.devmajor, member.devminor = device
        self._tar.addfile(member, io.BytesIO(data))
        return self

    def folder(self, name, mode=0o755, uid=0):
        return self.add(name, kind=tarfile.DIRTYPE, mode=mode, uid=uid)

    def tree(self, path):
        self._tar.add(path, ".")
        return self

    def bytes(self):
        self._tar.close()
        return self._buffer.getvalue()


@pytest.fixture
def new_tar():
    """Makes a tar entry by entry."""
    return Tar
