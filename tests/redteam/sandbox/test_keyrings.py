"""Attack: the kernel's keyrings, which namespaces do not divide."""

from __future__ import annotations


async def test_keyrings(system_call):
    control, inside = await system_call("keyctl", 0, -3, 1)
    assert control.startswith("allowed"), control
    assert inside == "refused"
    control, inside = await system_call("add_key", b"user\0".hex(), b"q\0".hex(), "00", 1, -2)
    assert control.startswith("allowed"), control
    assert inside == "refused"
