"""Asynchronous against synchronous training where rollouts have a heavy tail.

    python bench/heavy_tail.py                       both rows, three repeats
    python bench/heavy_tail.py --row short --repeats 1 --steps 20

The built-in environment `heavy-tail`, scaled by 1/100: 95 % of the jobs take 0.1 s and 5 % take 6 s
(each ±20 %), G = 8, 16 groups a step, 128 slots, N_max = 4. Rewards are coin flips. Jobs sleep, and
the learner's step takes the time it is told to take without using the processor, as one on a device
of its own does: this shows what the two loops do with time, not what a model does.

    row      learner's step   what it is
    short    0.9 s            rollouts are what a step waits for: the most that overlapping can give
    long     5.0 s            synchronous utilisation of the learner about 0.4

Both sides run alternately in one process; medians over the repeats. `speed` is unmasked trained
tokens per second of wall clock, start and drain included. `slow_share` is the slow rollouts' share
of the rollouts with at least one trained token, over their share of those started: 1 means that the
bound on staleness censors nobody; `slow_tokens` is the same of trained tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from quintain import registry
from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.run import run_training

GROUPS, SIZE, SLOTS, SCALE, STALENESS = 16, 8, 128, 100.0, 4
ROWS = {"short": (0.9, 5, 80), "long": (5.0, 5, 20)}
"""The learner's step in seconds; steps of a synchronous and of an asynchronous run."""


async def coin(task, trajectory) -> bool:
    return random.Random(f"{task.id} {trajectory.sample_index}").random() < 0.5


async def one_run(mode: str, steps: int, work_s: float) -> dict[str, float]:
    environment = registry.environments.get("heavy-tail")(scale=SCALE)
    environment.verifier = registry.verifiers.get("function")(coin)
    with tempfile.TemporaryDirectory() as folder:
        learner = BanditLearner(Path(folder), lr=0.0, work_s=work_s)
        config = TrainConfig(
            steps=steps, groups_per_step=GROUPS, group_size=SIZE, mode=mode,
            max_staleness=STALENESS, max_concurrent_rollouts=SLOTS, eval_every=0,
            checkpoint_every=1000,
        )  # fmt: skip
        with Store.begin(Path(folder) / "run", kind="train", identity={}) as store:
            async with Host(environment, BanditPolicy(), store=store) as host:
                began, cpu = time.monotonic(), time.process_time()
                await run_training(config, host, store, learner=learner)
                wall, cpu = time.monotonic() - began, time.process_time() - cpu
            rows = store.metric_rows()
            started = [row.total_s > 100 / SCALE for row in store.rows()]
    trained = sum(int(batch.loss_mask_BT.sum()) for batch in learner.batches)
    oldest = max(
        int((version - batch.version_BT[batch.loss_mask_BT]).max(initial=0))
        for version, batch in enumerate(learner.batches)
    )
    total: dict[str, float] = defaultdict(float)
    for _, name, value in rows:
        total[name] += value or 0.0

    def by_duration(name: str) -> tuple[float, float]:
        """(slow, all) of what is counted by the rollouts' duration."""
        found = {key: v for key, v in total.items() if key.startswith(f"{name}_by_duration/")}
        return sum(v for key, v in found.items() if not key.endswith("/0-1s")), sum(found.values())

    slow_fresh, fresh = by_duration("fresh")
    slow_tokens, tokens = by_duration("tokens")
    slow_stale, stale = by_duration("stale")
    slow = sum(started) / len(started)
    return {
        "tokens_per_s": trained / wall,
        "step_s": wall / steps,
        "utilisation": steps * work_s / wall,
        "oldest": oldest,
        "masked": total["tokens_stale"] / max(total["tokens_sampled"], 1),
        "slow_share": slow_fresh / fresh / slow,
        "slow_tokens": (slow_tokens - slow_stale) / (tokens - stale) / slow,
        "cpu_ms_per_rollout": 1000 * cpu / len(started),
    }


async def row(name: str, repeats: int, steps: int | None) -> None:
    work_s, sync_steps, async_steps = ROWS[name]
    found: dict[str, list[dict[str, float]]] = {"sync": [], "async": []}
    for _ in range(repeats):
        found["sync"].append(await one_run("sync", sync_steps, work_s))
        found["async"].append(await one_run("async", steps or async_steps, work_s))
    print(f"{name}: learner's step {work_s:g} s, {repeats} repeats, medians:", flush=True)
    median = {
        mode: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for mode, runs in found.items()
    }
    for mode, values in median.items():
        print(f"  {mode:5}", "  ".join(f"{key} {value:.3g}" for key, value in values.items()))
    speed = median["async"]["tokens_per_s"] / median["sync"]["tokens_per_s"]
    ceiling = median["async"]["utilisation"] / median["sync"]["utilisation"]
    print(
        f"  speed {speed:.2f}x; utilisation {median['async']['utilisation']:.2f} against "
        f"{median['sync']['utilisation']:.2f} ({ceiling:.2f}x; speed is "
        f"{speed / ceiling:.2f} of it)"
        f"; oldest trained token {max(run['oldest'] for run in found['async'])} versions",
        flush=True,
    )
    print(json.dumps({"row": name, "speed": speed, "median": median}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", choices=[*ROWS], action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of asynchronous runs")
    chosen = parser.parse_args()
    for name in chosen.row or ROWS:
        asyncio.run(row(name, chosen.repeats, chosen.steps))


if __name__ == "__main__":
    main()
