"""Killed with SIGKILL at random moments and resumed: nothing lost, nothing repeated."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.store import Store

KILLS = 8
STEPS = 14

RUN = """
import asyncio, random, sys
from pathlib import Path
from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.run import run_training
from words import words

folder, mode = Path(sys.argv[1]), sys.argv[2]

def slow(text, seed):
    return random.Random(seed).random() ** 4 * 0.2

async def main():
    config = TrainConfig(steps=int(sys.argv[3]), mode=mode, groups_per_step=3, group_size=4,
                         checkpoint_every=4, eval_every=4, max_staleness=2, refill_groups=2)
    with Store.begin(folder, kind="train", identity={}, resume=True) as store:
        print("ready", flush=True)
        learner = BanditLearner(folder, work_s=0.02)
        async with Host(words(), BanditPolicy(slow), store=store) as host:
            await run_training(config, host, store, learner=learner)
    print("logits", learner.logits.tolist(), flush=True)

asyncio.run(main())
"""


def start(folder, mode):
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), mode, str(STEPS)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out.rsplit("logits ", 1)[1])


def committed(folder):
    with (
        Store.read(folder) as store,
        store.query(
            "SELECT task_id, sample_index, attempt, body FROM trajectories WHERE purpose = 'train'"
        ) as cursor,
    ):
        return {row[:3]: row[3] for row in cursor}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_killed_and_resumed(tmp_path, mode):
    choose = random.Random(mode)
    folder = tmp_path / "run"
    kept = {}
    kills = 0
    while kills < KILLS:
        process = start(folder, mode)
        assert process.stdout.readline() == "ready\n"
        time.sleep(choose.random() * 1.5)
        process.send_signal(signal.SIGKILL)
        done = process.wait() == 0
        process.stdout.close()
        found = committed(folder)
        assert all(found[key] == body for key, body in kept.items())
        kept = found
        kills += 1
        if done:
            break
    end = finish(start(folder, mode))

    with Store.read(folder) as store:
        groups = store.groups()
        rows = store.metric_rows()
    found = committed(folder)
    assert all(found[key] == body for key, body in kept.items()), "a finished trajectory changed"
    assert all(attempt == 0 for _, _, attempt in found), "a finished trajectory was repeated"
    members = {(group.task_id, index) for group in groups for index in group.sample_indexes}
    assert {key[:2] for key in found} == members
    assert all(group.consumed_step is not None for group in groups), "a group was never trained"
    rewards = [step for step, name, _ in rows if name == "reward"]
    assert rewards == list(range(1, STEPS + 1)), "each step's metrics are there once"
    sampled = sum(value for _, name, value in rows if name == "trajectories")
    filtered = sum(value for _, name, value in rows if name == "groups_filtered")
    assert sampled + 4 * filtered == len(found)

    if mode == "sync":
        assert end == finish(start(tmp_path / "unkilled", mode))
