"""Attack: io_uring, whose requests no system-call filter sees."""

from __future__ import annotations


async def test_setup(system_call):
    control, inside = await system_call("io_uring_setup", 1, "00")
    assert control.startswith("allowed"), control
    assert inside == "refused"
