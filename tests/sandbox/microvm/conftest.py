"""Backends of microVMs; the first sandbox of a kind boots a guest, later ones take its snapshot."""

from __future__ import annotations

import pytest

from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.task import SandboxSpec


@pytest.fixture
async def backend():
    made = MicrovmBackend()
    yield made
    await made.close()


@pytest.fixture
async def sandbox(backend):
    return await backend.open(SandboxSpec())
