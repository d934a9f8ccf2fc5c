"""Attack: 300 MB of output, to make the reader hold it all."""

from __future__ import annotations

import resource
import subprocess

ATTACK = ["sh", "-c", "yes 0123456789 | head -c 300000000"]


async def test_flood(open_sandbox, any_launcher):
    with subprocess.Popen(ATTACK, stdout=subprocess.PIPE) as control:
        received = 0
        while piece := control.stdout.read(1 << 20):
            received += len(piece)
    assert received == 300_000_000
    sandbox = await open_sandbox(max_output_bytes=100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = await sandbox.exec(ATTACK, timeout_s=60)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert run.exit_code == 0, run.killed
    assert len(run.stdout) == 100_000
    assert run.truncated
    assert grown_mb < 30, grown_mb


async def test_flood_of_errors(open_sandbox):
    sandbox = await open_sandbox(max_output_bytes=1000)
    run = await sandbox.exec(["sh", "-c", "yes | head -c 5000000 >&2; echo done"])
    assert (len(run.stderr), run.text, run.truncated) == (1000, "done\n", True)
