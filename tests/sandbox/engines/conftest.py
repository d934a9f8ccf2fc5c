"""The container backends, each behind its marker."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from quintain.registry import sandboxes
from quintain.task import SandboxSpec

NAMES = ("docker", "podman", "runc", "crun", "gvisor")
ENGINES = NAMES[:2]
RUNTIMES = NAMES[2:]


def each(*names):
    """Parameters with their markers."""
    return [pytest.param(name, marks=getattr(pytest.mark, name)) for name in names]


def pytest_generate_tests(metafunc):
    """`backend` is every container backend, `engine` an engine, `runtime` an OCI runtime."""
    for fixture, names in (("backend", NAMES), ("engine", ENGINES), ("runtime", RUNTIMES)):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, each(*names), indirect=True)


async def _open(request):
    backend = sandboxes.get(request.param)()
    yield backend
    await backend.close()


backend = pytest.fixture(_open, name="backend")
engine = pytest.fixture(_open, name="engine")
runtime = pytest.fixture(_open, name="runtime")


@pytest.fixture
async def box(backend):
    """An open sandbox of the default spec."""
    box = await backend.open(SandboxSpec())
    yield box
    await box.close()


@pytest.fixture(scope="session")
def small_root(tmp_path_factory):
    """A root file system of one program, busybox, under the names that tests call."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox on the PATH: apt-get install busybox-static")
    root = tmp_path_factory.mktemp("images") / "small"
    for folder in ("bin", "etc", "tmp", "data"):
        (root / folder).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    known = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in known.stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "data" / "word").write_text("of the image\n")
    return root
