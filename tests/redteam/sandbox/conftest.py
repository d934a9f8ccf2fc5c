"""What the attacks share: sandboxes of the native backend, and the unprotected control."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quintain.errors import IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


@pytest.fixture(params=["c", "python"])
def any_launcher(request):
    """Both launchers; an attack that asks for it runs over each."""
    return request.param


@pytest.fixture
async def open_sandbox(request):
    """Opens sandboxes with the given spec; they are closed at the end."""
    launcher = "auto"
    if "any_launcher" in request.fixturenames:
        launcher = request.getfixturevalue("any_launcher")
    backend = NativeBackend(launcher=launcher)
    opened = []

    async def open_(**spec):
        try:
            sandbox = await backend.open(SandboxSpec(**spec))
        except IsolationError as error:
            pytest.skip(f"no native sandbox here: {error}")
        opened.append(sandbox)
        return sandbox

    yield open_
    for sandbox in opened:
        await sandbox.close()
    await backend.close()


@pytest.fixture
async def sandbox(open_sandbox):
    """A sandbox of the default spec."""
    return await open_sandbox()


@pytest.fixture
def unprotected():
    """Runs a command on the host with no protection at all: the control of an attack."""

    def run(argv, **options):
        options.setdefault("timeout", 30)
        return subprocess.run(argv, capture_output=True, text=True, **options)

    return run


@pytest.fixture
def python():
    """The argv of a Python program for the host and for the sandbox."""

    def argv(code, *arguments, inside):
        return ["python3" if inside else sys.executable, "-c", code, *map(str, arguments)]

    return argv
