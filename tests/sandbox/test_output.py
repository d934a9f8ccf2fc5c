"""Output over its limit: head and tail stay, a mark between them says what went."""

from __future__ import annotations

import asyncio
import os

import pytest

from quintain.sandbox.command import Capture, cut
from quintain.task import SandboxSpec


@pytest.mark.parametrize("limit", [1, 10, 60, 61, 100, 1000, 100_001])
@pytest.mark.parametrize("over", [-1, 0, 1, 7, 1000, 123_456])
async def test_capture(limit, over):
    data = bytes(n % 251 for n in range(max(0, limit + over)))
    capture = Capture(asyncio.get_running_loop(), limit)
    writing = asyncio.to_thread(lambda: os.write(capture.write_end, data[:30_000]))
    await writing
    for at in range(30_000, len(data), 30_000):
        while capture._kept._total < at:
            await asyncio.sleep(0)
        os.write(capture.write_end, data[at : at + 30_000])
    os.close(capture.write_end)
    capture.finish()
    assert capture.truncated == (len(data) > limit)
    if len(data) <= limit:
        assert capture.data == data
        return
    assert len(capture.data) == limit
    head, mark, tail = cut(len(data), limit)
    assert capture.data[:head] == data[:head]
    assert capture.data.endswith(data[len(data) - tail :])
    if mark:
        assert b"... %d bytes cut ..." % (len(data) - head - tail) in capture.data
    else:
        assert limit < 80, "only where there is no room for a mark"


async def test_exec_keeps_head_and_tail(backend):
    box = await backend.open(SandboxSpec(max_output_bytes=2000))
    script = "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last; echo e >&2"
    run = await box.exec(["sh", "-c", script])
    assert run.truncated
    assert run.text.startswith("first\nxxx")
    assert run.text.endswith("xxx\nlast\n")
    assert "bytes cut" in run.text
    assert (len(run.stdout), run.error_text, run.exit_code) == (2000, "e\n", 0)
