"""`quintain quickstart`: the whole of Quintain once, on this machine, in ten minutes.

It proves the sandbox, checks the verifier, evaluates a small language model on tasks in which it
calls a tool, trains it with reinforcement learning, picks the best checkpoint on the eval split,
and measures it once on tasks that nothing was chosen by.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quintain import registry
from quintain.cli import options as o
from quintain.cli.console import NEGATIVE, can_resume, err, fail, out, print_json, set_verbose, verb
from quintain.cli.doctor import probe, show_probe
from quintain.cli.follow import Follower
from quintain.cli.session import ready
from quintain.cli.train import selection_json, show_selection, show_times
from quintain.envs.environment import Environment
from quintain.loop import EvalSettings, TrainRun, atrain
from quintain.policies.local import Local
from quintain.rollouts import run_blocking
from quintain.store import new_folder
from quintain.training.config import TrainConfig
from quintain.viewer.report import report

DEMONSTRATIONS, WARM_STEPS = 1000, 150
"""What the tiny model learns from before it is evaluated."""


class Which(StrEnum):
    """The models that the quickstart knows."""

    smollm2 = "smollm2"
    tiny = "tiny"


@verb
def quickstart_command(
    policy: Annotated[
        Which, typer.Option(help="smollm2: a real language model; tiny: one minute, no download.")
    ] = Which.smollm2,
    out_folder: o.Out = None,
    resume: o.Resume = False,
    allow_weaker: o.AllowWeaker = False,
    seed: Annotated[int, typer.Option(help="Of tasks, rollouts and training.")] = 0,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Proves the sandbox, evaluates a small language model, trains it, evaluates it again.

    Example: quintain quickstart --policy tiny

    Ten minutes on two cores with the real model (--policy smollm2), about one with the tiny one.
    The exit code is 1 when training did not make the model better beyond chance.
    """
    set_verbose(verbose)
    if resume and out_folder is None:
        fail("--resume needs --out RUN, the folder of the run to go on with")
    folder = out_folder or new_folder(f"quickstart-{policy}")
    words = [
        "--policy",
        policy,
        "--out",
        str(folder),
        *(["--allow-weaker"] if allow_weaker else []),
    ]
    can_resume(f"quintain quickstart {shlex.join(words)} --resume")
    console = err() if as_json else out()
    run, times = run_blocking(_quickstart(policy, folder, resume, allow_weaker, seed, console))
    chosen = run.select()
    page = report(folder)
    if as_json:
        print_json({"folder": str(folder), **selection_json(chosen), "times_s": times})
    else:
        show_selection(chosen)
        show_times(times)
        _show_how_to_look(folder, page)
    if chosen.gain.difference.low <= 0:
        raise typer.Exit(NEGATIVE)


async def _quickstart(
    which: Which,
    folder: Path,
    resume: bool,
    allow_weaker: bool,
    seed: int,
    console: Console,
) -> tuple[TrainRun, dict[str, float]]:
    began = time.monotonic()
    _title(console, "1. The sandbox: is what a model writes really locked in?")
    found = await probe("native")
    show_probe(found, console)
    if not found.available or (found.missing and not allow_weaker):
        fail("the sandbox cannot be had as asked for; --allow-weaker goes on without", NEGATIVE)
    sandbox_s = time.monotonic() - began

    _title(
        console,
        "2. The environment: a question, a calculator in the sandbox, an answer with its result",
    )
    environment: Environment = registry.environments.get("calculator")(seed=seed)
    model, training, evaluation = await _plan(which, environment, seed)
    console.print(f"  policy {model.name}, {training.steps} steps of {training.algorithm}")

    _title(
        console,
        "3. Checks, evaluation, training with evaluations on the way, selection, held-out tasks",
    )
    follower = Follower(folder, training.steps, console)
    watcher = asyncio.create_task(follower.watch())
    try:
        async with ready(model):
            run = await atrain(
                environment,
                model,
                config=training,
                evaluation=evaluation,
                run=folder,
                resume=resume,
                on_event=follower,
                host={"allow_weaker": allow_weaker},
            )
    finally:
        watcher.cancel()
    return run, {"sandbox": sandbox_s, **follower.times, "in all": time.monotonic() - began}


async def _plan(
    which: Which, environment: Environment, seed: int
) -> tuple[Local, TrainConfig, EvalSettings]:
    """The model, and how long it is trained and measured so that the whole fits its time."""
    # One core samples while the other one learns.
    common = {"mode": "async", "max_staleness": 2, "learner_threads": 1, "seed": seed}
    if which is Which.smollm2:
        return (
            registry.policies.get("smollm2")(lora=16, threads=1, seed=seed),
            TrainConfig(steps=8, lr=2e-4, eval_every=4, **common),
            EvalSettings(samples=1, limit=64, heldout_samples=1, heldout_limit=200),
        )
    return (
        await asyncio.to_thread(_warm_tiny, environment, seed),
        TrainConfig(steps=20, lr=3e-4, eval_every=10, **common),
        EvalSettings(samples=1, limit=100, heldout_samples=2, heldout_limit=200),
    )


def _warm_tiny(environment: Environment, seed: int) -> Local:
    """A model from scratch that has seen some demonstrations: else it never earns a reward."""
    fresh: Local = registry.policies.get("tiny")(threads=1, seed=seed)
    assert environment.demonstrations is not None
    demonstrations = environment.demonstrations(DEMONSTRATIONS, seed)
    warm = registry.load("quintain.policies.local:warm_started")
    spec = warm(fresh.spec, demonstrations, steps=WARM_STEPS, seed=seed)
    return Local(spec, name="tiny", tool_format=fresh.tool_format)


def _title(console: Console, text: str) -> None:
    console.print(f"\n[bold]{escape(text)}[/]")


def _show_how_to_look(folder: Path, page: Path) -> None:
    console, quoted = out(), shlex.quote(str(folder))
    _title(console, "Look at it")
    console.print(f"  {escape(str(page))}   (open it in any browser)")
    console.print(f"  quintain export {quoted} --out trajectories.jsonl")
    console.print(f"  quintain eval calculator-hard --checkpoint {quoted} --limit 50")
