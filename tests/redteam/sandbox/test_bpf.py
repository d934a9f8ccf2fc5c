"""Attack: load things into the kernel: a bpf map, performance events."""

from __future__ import annotations

ARRAY_MAP = "02000000040000000800000001000000"


async def test_bpf(system_call, as_root):
    control, inside = await system_call("bpf", 0, ARRAY_MAP, 72)
    assert control.startswith("allowed"), control
    assert inside == "refused"


async def test_events(system_call):
    for name in ("perf_event_open", "userfaultfd", "memfd_secret"):
        control, inside = await system_call(name, -1, -1, -1, -1, -1)
        assert control.startswith("allowed -1"), control
        assert inside == "refused"
