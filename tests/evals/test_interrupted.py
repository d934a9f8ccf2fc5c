"""A run that is killed or interrupted is resumed: complete, and nothing twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

import quintain as q
from quintain.errors import StoreError
from quintain.evals import EvalRun
from quintain.store import Store

PROGRAM = """
    import sys
    import quintain as q

    async def right(text, answer):
        return text == answer

    rows = [{"id": f"t{i}", "prompt": f"{i}", "answer": "x", "split": "eval"} for i in range(40)]
    env = q.Environment(rows, right, name="slow")
    policy = q.scripted("x", latency_s=float(sys.argv[2]))
    q.evaluate(env, policy, samples=3, concurrency=8, run=sys.argv[1], resume=True)
"""


def start(folder, latency_s):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(latency_s)],
        stderr=subprocess.PIPE,
        text=True,
    )


def committed(folder):
    try:
        with Store.read(folder) as store:
            return len(store.rows())
    except (StoreError, sqlite3.Error):  # not begun yet, or just being made
        return 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_midway_and_resumed(tmp_path, how):
    folder = tmp_path / "r"
    process = start(folder, 0.2)
    deadline = time.monotonic() + 120
    while committed(folder) < 10:
        assert time.monotonic() < deadline, "the run does not get on"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.kill(process.pid, how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -how or (how == signal.SIGINT and process.returncode == 1)
    if how == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    # The lock is free and what was committed is readable and whole.
    run = EvalRun.open(folder)
    assert 10 <= run.scores.samples < 120
    assert any("incomplete" in warning for warning in run.warnings)
    assert all(sample.trajectory.text == "x" for sample in run.samples())
    before = {row.key for row in Store.read(folder).rows()}
    last = start(folder, 0.0)
    assert last.wait(timeout=120) == 0, last.stderr.read()
    last.stderr.close()
    rows = Store.read(folder).rows(final=None)
    counted = Counter((row.key.task_id, row.key.sample_index) for row in rows)
    assert counted == {(f"t{i}", k): 1 for i in range(40) for k in range(3)}
    assert before <= {row.key for row in rows}
    assert not EvalRun.open(folder).warnings
    assert q.EvalRun.open(folder).pass_at(3).value == 1.0
