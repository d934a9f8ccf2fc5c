"""A GRPO step of this package beside TRL's `GRPOTrainer`, on the CPU.

    python bench/training.py --trl PYTHON                   SmolLM2: 5 steps, 3 repeats, held-out
    python bench/training.py --trl PYTHON --stub --steps 8  a model that costs nothing: overhead

PYTHON is the interpreter of an environment that has `trl` and `peft` (`python -m venv .venv-trl`,
then `pip install -c constraints.txt torch transformers trl peft`). Each side is a process of its
own, one after the other, alternating over the repeats. Both have the same weights, float32 LoRA (r
16, alpha 32) on the same layers, prompts (two examples, then a sum to be written as a tool call),
exact-match reward, learning rate, P groups of G, 16 sampled tokens, temperature 1 and two threads.

Every group is trained on both sides: ours would leave out those whose rewards are all equal, so its
reward gets a share of 0.002 that differs from sample to sample. Time is that of the steps, loading
excluded. Memory is the peak of resident memory; for ours the sum of the peaks of its three
processes. Held-out tasks are answered greedily by one evaluator from both sides' exported weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = {"+": "plus", "-": "minus", "*": "times"}
SHOTS = [
    ("What is 12 plus 7?", "<calc>12+7</calc>"),
    ("What is 340 times 25?", "<calc>340*25</calc>"),
]
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TOKENS, LR = 16, 3e-4


def questions(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        a, b, sign = rng.randint(10, 999), rng.randint(10, 999), rng.choice("+-*")
        rows.append((f"What is {a} {WORDS[sign]} {b}?", f"<calc>{a}{sign}{b}</calc>"))
    return rows


# --- the parent -----------------------------------------------------------------------------------


def side(name: str, python: str, told: dict, folder: Path) -> dict:
    """Runs one side in a process of its own; what it found."""
    (folder / "told.json").write_text(json.dumps(told))
    command = [python, __file__, "--side", name, "--folder", str(folder)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit(f"the side {name} failed with exit code {found.returncode}")
    return json.loads(found.stdout.strip().splitlines()[-1])


def model(stub: bool, root: Path) -> str:
    if not stub:
        from quintain.policies.local.folders import model_folder
        from quintain.policies.local.spec import ModelSpec

        return str(model_folder(ModelSpec("smollm2")))
    side("stub", sys.executable, {}, root)
    return str(root / "stub")


def rendered(source: str, rows: list[tuple[str, str]]) -> list[str]:
    from quintain.messages import user
    from quintain.policies.local.template import Template
    from quintain.policies.local.toolcalls import tool_format

    template = Template(Path(source), tool_format("json"))
    return [template.render([*shots(), user(question)]) for question, _ in rows]


def shots() -> list:
    from quintain.messages import assistant, user

    return [m for asked, said in SHOTS for m in (user(asked), assistant(said))]


def main(chosen: argparse.Namespace) -> None:
    names = {"quintain": sys.executable, "trl": chosen.trl}
    found: dict[str, list[dict]] = {name: [] for name in names}
    gaps: list[float] = []
    with tempfile.TemporaryDirectory() as top:
        source = model(chosen.stub, Path(top))
        for repeat in range(chosen.repeats):
            rows = questions(chosen.groups * chosen.steps, repeat)
            held = questions(chosen.held_out, 1_000_000 + repeat)
            solved = {}
            order = list(names.items())
            for name, python in order if repeat % 2 == 0 else order[::-1]:
                folder = Path(top) / f"{name}-{repeat}"
                folder.mkdir()
                told = {
                    "source": source, "rows": rows, "held": held, "seed": repeat,
                    "steps": chosen.steps, "groups": chosen.groups, "size": chosen.size,
                    "prompts": rendered(source, rows), "threads": chosen.threads,
                }  # fmt: skip
                one = side(name, python, told, folder)
                found[name].append(one)
                print(name, repeat, json.dumps(one), flush=True)
                if held:
                    solved[name] = side("evaluate", sys.executable, told, folder)["solved"]
                    print(name, repeat, f"held-out {statistics.mean(solved[name]):.3f}", flush=True)
            if held:
                pairs = zip(solved["quintain"], solved["trl"], strict=True)
                gaps += [ours - theirs for ours, theirs in pairs]
    report(found, gaps)


def report(found: dict[str, list[dict]], gaps: list[float]) -> None:
    median = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    ours, theirs = median["quintain"], median["trl"]
    for key, unit in (("step_s", "s"), ("ms_per_1000", "ms"), ("rss_mb", "MiB")):
        print(
            f"{key:12} quintain {ours[key]:9.1f} {unit}, TRL {theirs[key]:9.1f} {unit}: "
            f"{ours[key] / theirs[key]:.2f}"
        )
    if len(gaps) > 1:
        mean = statistics.mean(gaps)
        half = 1.96 * statistics.stdev(gaps) / len(gaps) ** 0.5
        print(f"held-out, ours − TRL's: {mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]")


# --- the sides ------------------------------------------------------------------------------------


def run_quintain(told: dict, folder: Path) -> dict:
    import asyncio

    return asyncio.run(train_ours(told, folder))


async def train_ours(told: dict, folder: Path) -> dict:
    import functools

    from quintain.envs.environment import Environment
    from quintain.messages import Sampling, user
    from quintain.policies.local import load_model, local
    from quintain.rollouts import Host
    from quintain.store import Store
    from quintain.training.config import TrainConfig
    from quintain.training.learner_process import LearnerProcess, local_learner
    from quintain.training.run import run_training

    async def reward(task, trajectory) -> float:
        # Asynchronous, so that it runs in this process, as TRL's does: a plain function is run in
        # a fork of its own, which can be killed.
        exact = trajectory.text.strip() == task.answer
        differs = random.Random(f"{task.id} {trajectory.sample_index}").random()
        return 0.998 * exact + 0.002 * differs

    tasks = [
        {"id": f"t{n}", "prompt": [*shots(), user(asked)], "answer": gold, "split": "train"}
        for n, (asked, gold) in enumerate(told["rows"])
    ]
    env = Environment(tasks, reward, name="sums", graded=True, sampling=Sampling(max_tokens=TOKENS))
    policy = local(
        told["source"], lora=16, dtype="float32", threads=told["threads"], tool_format="json"
    )
    config = TrainConfig(
        steps=told["steps"], groups_per_step=told["groups"], group_size=told["size"],
        mode="sync", lr=LR, warmup_steps=0, refill_groups=0, min_signal=0, eval_every=0,
        checkpoint_every=told["steps"], seed=told["seed"], learner_threads=told["threads"],
    )  # fmt: skip
    options = config.learner_options(env.sampling, lora=True)
    with Store.begin(folder / "run", kind="train", identity={}) as store:
        await policy.start()
        learner = await LearnerProcess.start(
            functools.partial(local_learner, policy.spec, options, store.folder / "weights")
        )
        try:
            async with Host(env, policy, store=store) as host:
                await run_training(config, host, store, learner=learner)
            pids = [os.getpid(), policy._engine.pid, learner._process.pid]
            rss_mb = sum(peak_mb(pid) for pid in pids)
        finally:
            await learner.close()
            await policy.close()
        rows = store.metric_rows()
        last = store.checkpoints()[-1]
    spec = policy.spec
    made = load_model(spec)
    made.load(folder / "run" / last.path / "model.safetensors")
    made.export(folder / "model")
    wall = [value for _, name, value in rows if name == "step_s"]
    trained = sum(value for _, name, value in rows if name == "tokens_trained")
    assert len(wall) == told["steps"]
    assert trained > 0
    return summary(wall, trained, rss_mb)


def peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no peak of process {pid}")


def summary(wall: list[float], trained: float, rss_mb: float) -> dict:
    return {
        "step_s": statistics.mean(wall),
        "trained_tokens": trained,
        "ms_per_1000": 1e6 * sum(wall) / trained,
        "rss_mb": rss_mb,
    }


def run_trl(told: dict, folder: Path) -> dict:
    os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch

    torch.set_num_threads(told["threads"])
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    wall: list[float] = []
    lengths: list[int] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *_, **__) -> None:
            self.began = time.monotonic()

        def on_step_end(self, *_, **__) -> None:
            wall.append(time.monotonic() - self.began)

    def reward(completions, gold, completion_ids, **_) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [float(said.strip() == right) for said, right in zip(completions, gold, strict=True)]

    rows = [
        {"prompt": prompt, "gold": gold}
        for prompt, (_, gold) in zip(told["prompts"], told["rows"], strict=True)
    ]
    config = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, seed=told["seed"],
        per_device_train_batch_size=told["groups"] * told["size"],
        num_generations=told["size"], max_completion_length=TOKENS, temperature=1.0,
        learning_rate=LR, lr_scheduler_type="constant", max_steps=told["steps"], beta=0.0,
        scale_rewards="none", max_grad_norm=1.0, gradient_checkpointing=False,
        save_strategy="no", report_to=[], logging_strategy="no", dataloader_pin_memory=False,
        disable_tqdm=True, adam_beta2=0.95, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=told["source"],
        args=config,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=reward,
        processing_class=AutoTokenizer.from_pretrained(told["source"]),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=LAYERS),
        callbacks=[Clock()],
    )
    trainer.train()
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    trainer.model.merge_and_unload().save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        path = Path(told["source"]) / name
        if path.is_file():
            (folder / "model" / name).write_bytes(path.read_bytes())
    return summary(wall, sum(lengths), rss_mb)


def run_evaluate(told: dict, folder: Path) -> dict:
    import asyncio

    from quintain.messages import Sampling, user
    from quintain.policies.local import local

    async def answer(policy, number: int, question: str, gold: str) -> bool:
        action = await policy.act(
            [*shots(), user(question)],
            tools=[],
            sampling=Sampling(temperature=0.0, max_tokens=TOKENS),
            seed=0,
            session=f"held {number}",
        )
        return action.message.text.strip() == gold

    async def every() -> list[bool]:
        policy = local(folder / "model", dtype="float32", tool_format="json")
        try:
            return await asyncio.gather(
                *(answer(policy, n, *row) for n, row in enumerate(told["held"]))
            )
        finally:
            await policy.close()

    return {"solved": [int(right) for right in asyncio.run(every())]}


def run_stub(told: dict, folder: Path) -> dict:
    """A Llama of one small layer with the tiny model's tokenizer: its arithmetic costs nothing."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from quintain.policies.local.tiny_weights import tiny_folder

    base = tiny_folder(0)
    shutil.copytree(base, folder / "stub")
    config = AutoConfig.from_pretrained(base)
    config.update(
        {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
        }
    )  # fmt: skip
    config.layer_types = None
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / "stub")
    return {}


SIDES = {"quintain": run_quintain, "trl": run_trl, "evaluate": run_evaluate, "stub": run_stub}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl", default=".venv-trl/bin/python", help="interpreter that has trl")
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--held-out", type=int, default=200, help="0: none")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        found = SIDES[given.side](
            json.loads((given.folder / "told.json").read_text()), given.folder
        )
        print(json.dumps(found))
    else:
        main(given)
