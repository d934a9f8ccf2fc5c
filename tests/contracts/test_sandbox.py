"""The sandbox contract, over every way in which the native backend can run."""

from __future__ import annotations

import pytest

from quintain.sandbox.native import NativeBackend
from quintain.testing import check_sandbox


@pytest.mark.parametrize("launcher", ["c", "python"])
async def test_native(launcher):
    backend = NativeBackend(launcher=launcher)
    try:
        await check_sandbox(backend)
    finally:
        await backend.close()
