"""Attack: switch off the randomised layout of memory for programs to come."""

from __future__ import annotations

ATTACK = ["setarch", "--addr-no-randomize", "echo", "off"]


async def test_layout(sandbox, unprotected):
    assert unprotected(ATTACK).stdout == "off\n"
    run = await sandbox.exec(ATTACK)
    assert "off" not in run.text
    assert not run.ok
