"""Native sandboxes for the tests; skipped with the reason where the host allows none."""

from __future__ import annotations

import pytest

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
