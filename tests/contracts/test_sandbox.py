"""The sandbox contract, over every way in which the native backend can run."""

from __future__ import annotations

from quintain.sandbox.native import NativeBackend
from quintain.testing import check_sandbox


async def test_native():
    backend = NativeBackend()
    try:
        await check_sandbox(backend)
    finally:
        await backend.close()
