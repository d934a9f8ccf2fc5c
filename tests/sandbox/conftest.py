"""Native sandboxes for the tests; skipped with the reason where the host allows none."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest

import quintain
from quintain.errors import IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


@pytest.fixture(params=["c", "python"])
async def backend(request):
    """A backend over each launcher."""
    backend = NativeBackend(launcher=request.param)
    try:
        await (await backend.open(SandboxSpec())).close()
    except IsolationError as error:
        await backend.close()
        pytest.skip(f"no native sandbox here: {error}")
    yield backend
    await backend.close()


@pytest.fixture
async def box(backend):
    """An open sandbox of the default spec."""
    box = await backend.open(SandboxSpec())
    yield box
    await box.close()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels instead of an index, by the host's own pip configuration."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    def add(name, version="1.0", content="VALUE = 1\n", needs=(), script=""):
        files = {f"{name}.py": content}
        info = f"{name}-{version}.dist-info"
        files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
            "".join(f"Requires-Dist: {one}\n" for one in needs)
        )
        files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        if script:
            files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
        record = ""
        for path, text in files.items():
            hashed = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            record += f"{path},sha256={hashed.decode()},{len(text.encode())}\n"
        files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)

    return add


@pytest.fixture
def as_ordinary_user():
    """Runs a script as a user without rights, with a Python that this user can read."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to become an ordinary user")
    system = "/usr/bin/python3"
    # Not below pytest's own folder, which every run closes to others.
    home = Path(tempfile.mkdtemp(prefix="quintain-ordinary-"))
    os.chown(home, 54321, 54321)
    source = Path(quintain.__file__).parents[1]
    path = [str(source), *(entry for entry in os.sys.path if entry.endswith("site-packages"))]
    become = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(path)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"

    def run(*arguments, wrap=()):
        command = [*become, *wrap, system, "-c", *arguments]
        return subprocess.run(
            command, env=env, cwd="/", capture_output=True, text=True, timeout=100
        )

    try:
        check = run("import quintain.sandbox.native, quintain.testing")
        if check.returncode:
            pytest.skip(f"no Python for an ordinary user: {check.stderr.strip()[-200:]}")
        yield run
    finally:
        shutil.rmtree(home)
