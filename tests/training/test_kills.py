"""Real models in real processes, killed with SIGKILL: the run, its learner, its generation."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra 'train' (torch)")

from quintain.envs.environment import Environment
from quintain.messages import Sampling
from quintain.policies.local import tiny
from quintain.rollouts import Host, Job, rollout
from quintain.rollouts.acting import CALLED_AGAIN
from quintain.store import Store
from quintain.task import Task

STEPS = 6

RUN = """
import asyncio, sys
from quintain.envs.environment import Environment
from quintain.messages import Sampling
from quintain.policies.local import tiny
from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.config import TrainConfig
from quintain.training.run import run_training

def letter(text):
    return text[:1].isascii() and text[:1].isalpha()

async def main():
    env = Environment([{"id": f"t{i}", "prompt": f"say {i}", "split": "train"} for i in range(64)],
                      letter, name="letters", sampling=Sampling(max_tokens=12, temperature=1.0))
    config = TrainConfig(steps=int(sys.argv[3]), mode=sys.argv[2], groups_per_step=4, group_size=6,
                         checkpoint_every=2, eval_every=0, max_staleness=2, lr=3e-3,
                         learner_threads=1)
    policy = tiny(threads=1)
    with Store.begin(sys.argv[1], kind="train", identity={}, resume=True) as store:
        print("ready", flush=True)
        async with Host(env, policy, store=store) as host:
            await run_training(config, host, store)
        print("final", store.checkpoints()[-1].hash, flush=True)
    await policy.close()

asyncio.run(main())
"""


def start(folder, mode):
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), mode, str(STEPS)],
        stdout=subprocess.PIPE,
        text=True,
    )


def children(pid):
    """(pid, command line) of the processes that a run has started."""
    out = []
    for found in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((found / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid:
                out.append((int(found.name), (found / "cmdline").read_bytes().decode()))
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return out


def finish(process, timeout_s=240):
    out, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0
    return out.rsplit("final ", 1)[1].strip()


def wait_for_steps(folder, steps, process):
    while process.poll() is None:
        with Store.read(folder) as store:
            if len({step for step, _, _ in store.metric_rows()}) >= steps:
                return
        time.sleep(0.1)


def kept(folder):
    with (
        Store.read(folder) as store,
        store.query("SELECT task_id, sample_index, attempt, body FROM trajectories") as cursor,
    ):
        return {row[:3]: row[3] for row in cursor}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_run_goes_on(tmp_path, mode):
    choose = random.Random(mode)
    folder, before = tmp_path / "run", {}
    for kill in range(3):
        process = start(folder, mode)
        assert process.stdout.readline() == "ready\n"
        wait_for_steps(folder, kill + 1, process)
        time.sleep(choose.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = kept(folder)
        assert all(found[key] == body for key, body in before.items())
        before = found
    final = finish(start(folder, mode))
    found = kept(folder)
    assert all(found[key] == body for key, body in before.items()), "a finished one changed"
    if mode == "sync":
        assert final == finish(start(tmp_path / "unkilled", mode))
    else:
        assert set(Counter(key[:2] for key in found).values()) == {1}, "one was played twice"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("victim", ["learner_process", "policies.local.server"])
def test_a_killed_part_is_started_again(tmp_path, mode, victim):
    folder = tmp_path / "run"
    process = start(folder, mode)
    assert process.stdout.readline() == "ready\n"
    for steps in (1, 3):
        wait_for_steps(folder, steps, process)
        for pid, command in children(process.pid):
            if victim in command:
                os.kill(pid, signal.SIGKILL)
    final = finish(process)
    with Store.read(folder) as store:
        rewards = [step for step, name, _ in store.metric_rows() if name == "reward"]
        assert rewards == list(range(1, STEPS + 1))
        attempts = Counter((row.key.task_id, row.key.sample_index) for row in store.rows())
        assert set(attempts.values()) == {1}, "no rollout began anew"
        if victim == "learner_process":
            caught_up = [data for _, _, data in store.event_rows("training.learner_caught_up")]
            assert caught_up
            assert all(data["same_weights"] for data in caught_up)
    if mode == "sync":
        assert final == finish(start(tmp_path / "unkilled", mode))


async def test_a_killed_generation_process_costs_no_rollout(tmp_path):
    env = Environment(
        [{"id": f"t{i}", "prompt": f"say {i}", "split": "train"} for i in range(4)],
        lambda text: True,
        sampling=Sampling(max_tokens=120, temperature=1.0),
    )
    policy = tiny(threads=1)
    try:
        await policy.start()
        async with Host(env, policy, retries=0) as host:
            jobs = [Job(Task(id=f"t{i}", prompt=f"say {i}"), "train", 0) for i in range(4)]
            playing = asyncio.gather(*(rollout(job, host) for job in jobs))
            while not (await policy.counters())["sampled_tokens"]:
                await asyncio.sleep(0.01)
            os.kill(policy._engine.pid, signal.SIGKILL)
            done = await playing
    finally:
        await policy.close()
    assert [t.error for t in done] == [None] * 4
    assert any(event.kind == CALLED_AGAIN for t in done for event in t.events)
