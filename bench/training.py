"""Training measured: asynchronous against synchronous under a heavy tail, learner overhead.

    python bench/training.py             everything, three repeats

Everything compared runs in one process, alternating; medians over the repeats. Tools sleep and the
learner sleeps, so this shows what the loops do with time, not what a model does. `slow_share` is
the slow rollouts' share of the rollouts with at least one trained token, over their share of those
started; 1 means that the staleness bound censors nobody.

Heavy tail, scaled by 1/100: 95 % of the rollouts take 0.1 s and 5 % take 6 s (each ±20 %), G = 8,
16 groups a step, 128 slots.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from quintain.envs.environment import Environment
from quintain.messages import user
from quintain.rollouts import Host
from quintain.store import Store
from quintain.task import PublicTask
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.run import run_training
from quintain.trajectory import Action, Observation

GROUPS, SIZE, SLOTS = 16, 8, 128


class SlowTool:
    """Two actions with a wait between them, as if a tool ran: the first is old when it is over."""

    tools = ()

    def __init__(self, task: PublicTask, world: object, sandbox: object, seed: int) -> None:
        chooser = random.Random(seed)
        self.wait_s = (6.0 if chooser.random() < 0.05 else 0.1) * chooser.uniform(0.8, 1.2)
        self.opening = task.prompt
        self.turns = 0

    async def reset(self) -> Observation:
        """The task."""
        return Observation(messages=self.opening)

    async def respond(self, action: Action) -> Observation:
        """Waits after the first action, ends after the second."""
        self.turns += 1
        if self.turns == 2:
            return Observation(terminated=True)
        await asyncio.sleep(self.wait_s)
        return Observation(messages=(user("done"),))

    async def close(self) -> None:
        """Holds nothing."""


async def coin(task, trajectory) -> bool:
    return random.Random(f"{task.id} {trajectory.sample_index}").random() < 0.5


async def one_run(mode: str, steps: int, work_s: float, staleness: int) -> dict[str, float]:
    tasks = [{"id": f"t{i}", "prompt": str(i), "split": "train"} for i in range(2000)]
    environment = Environment(tasks, coin, name="tail", episode=SlowTool)
    with tempfile.TemporaryDirectory() as folder:
        learner = BanditLearner(Path(folder), lr=0.0, work_s=work_s)
        config = TrainConfig(
            steps=steps, groups_per_step=GROUPS, group_size=SIZE, mode=mode,
            max_staleness=staleness, max_concurrent_rollouts=SLOTS, eval_every=0,
            checkpoint_every=1000,
        )  # fmt: skip
        with Store.begin(Path(folder) / "run", kind="train", identity={}) as store:
            async with Host(environment, BanditPolicy(), store=store) as host:
                began = time.monotonic()
                await run_training(config, host, store, learner=learner)
                wall = time.monotonic() - began
            rows = store.metric_rows()
            trained = sum(int(batch.loss_mask_BT.sum()) for batch in learner.batches)
            oldest = max(
                int((version - batch.version_BT[batch.loss_mask_BT]).max(initial=0))
                for version, batch in enumerate(learner.batches)
            )
            started = [row.total_s > 1 for row in store.rows()]
    total: dict[str, float] = defaultdict(float)
    for _, name, value in rows:
        total[name] += value or 0.0
    fresh = {name: v for name, v in total.items() if name.startswith("fresh_by_duration/")}
    slow = sum(v for name, v in fresh.items() if not name.endswith("/0-1s"))
    return {
        "tokens_per_s": trained / wall,
        "step_s": wall / steps,
        "learner_busy": steps * work_s / wall,
        "masked": total["tokens_stale"] / max(total["tokens_sampled"], 1),
        "oldest": oldest,
        "slow_share": slow / sum(fresh.values()) / np.mean(started),
    }


async def heavy(repeats: int, work_s: float, sync_steps: int, async_steps: int) -> None:
    found: dict[str, list[dict[str, float]]] = {"sync": [], "async": []}
    for _ in range(repeats):
        found["sync"].append(await one_run("sync", sync_steps, work_s, 4))
        found["async"].append(await one_run("async", async_steps, work_s, 4))
    print(f"learner step {work_s:g} s, {repeats} repeats, medians:")
    median = {
        mode: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for mode, runs in found.items()
    }
    for mode, values in median.items():
        print(f"  {mode:5}", "  ".join(f"{name} {value:.3g}" for name, value in values.items()))
    speed = median["async"]["tokens_per_s"] / median["sync"]["tokens_per_s"]
    ceiling = 1 / median["sync"]["learner_busy"]
    print(
        f"  unmasked trained tokens per second: {speed:.2f}x (learner always busy: {ceiling:.2f}x)"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80, help="of asynchronous runs")
    chosen = parser.parse_args()
    asyncio.run(heavy(chosen.repeats, 0.9, 5, chosen.steps))
    asyncio.run(heavy(chosen.repeats, 4.5, 5, max(8, chosen.steps // 4)))


if __name__ == "__main__":
    main()
