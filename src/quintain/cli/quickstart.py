"""`quintain quickstart`: the whole of Quintain once, on this machine, in ten minutes.

It proves the sandbox, checks the verifier, evaluates a small language model on tasks in which it
calls a tool, trains it with reinforcement learning, picks the best checkpoint on the eval split,
and measures it once on tasks that nothing was chosen by. From the checks on it is `quintain train`
with the settings below, which are kept in the run's `config.toml`.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from quintain import registry
from quintain.cli import options as o
from quintain.cli.console import (
    NEGATIVE,
    can_resume,
    err,
    fail,
    out,
    print_json,
    set_verbose,
    verb,
)
from quintain.cli.doctor import probe, show_probe
from quintain.cli.session import prepare
from quintain.cli.settings import Settings
from quintain.cli.train import selection_json, show_selection, show_times, train_session
from quintain.loop import TrainRun
from quintain.messages import Message
from quintain.rollouts import run_blocking
from quintain.store import new_folder
from quintain.viewer.report import report

SMOLLM2: dict[str, Any] = {
    "environment": "calculator",
    # One core samples while the other one learns.
    "policy": {"name": "smollm2", "lora": 16, "threads": 1},
    "train": {
        "steps": 5, "group_size": 8, "groups_per_step": 4, "lr": 3e-4, "eval_every": 3,
        "mode": "async", "max_staleness": 2, "learner_threads": 1,
    },
    "evaluation": {
        "samples": 1, "limit": 64, "heldout_samples": 1, "heldout_limit": 200, "threads": 2,
    },
}  # fmt: skip
"""A real language model of 135 million parameters; adapters are trained."""
TINY: dict[str, Any] = {
    "environment": "calculator",
    "options": {"shots": 0, "largest": 99},
    "policy": {"name": "local", "dtype": "float32", "tool_format": "tags", "threads": 1},
    "train": {
        "steps": 16, "group_size": 8, "groups_per_step": 8, "lr": 3e-4, "eval_every": 8,
        "mode": "async", "max_staleness": 2, "learner_threads": 1,
    },
    "evaluation": {
        "samples": 1, "limit": 64, "heldout_samples": 1, "heldout_limit": 200, "threads": 2,
    },
}  # fmt: skip
"""A model of 0.8 million parameters, made here and now; all of it is trained."""
DEMONSTRATIONS, WARM_STEPS, WARM_BATCH = 3000, 160, 16
"""What the tiny model sees of the task first: fresh, it never earns a reward."""
GUESSES = 0.6
"""Share of the demonstrations that guess instead of calling the calculator: what training is to
find out is that only the calculator pays."""


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
    times = {"the sandbox": time.monotonic() - began}

    _title(console, "2. The model")
    since = time.monotonic()
    settings = await asyncio.to_thread(_settings, which, allow_weaker, seed)
    made = prepare(settings, ("--config", str(folder / "config.toml")))
    times["the model"] = time.monotonic() - since
    console.print(f"  {made.policy.name}, to be trained on {made.environment.name}")

    _title(console, "3. Checks, evaluation, training with evaluations on the way, held-out tasks")
    run, spent = await train_session(made, folder, resume, console)
    return run, {**times, **spent, "in all": time.monotonic() - began}


def _settings(which: Which, allow_weaker: bool, seed: int) -> Settings:
    """What is trained on what, and for how long."""
    common = {"seed": seed, "allow_weaker": allow_weaker}
    if which is Which.smollm2:
        return Settings.model_validate({**SMOLLM2, **common})
    environment = registry.environments.get("calculator")(**TINY["options"])
    fresh = registry.policies.get("tiny")(threads=1, seed=seed)
    warm = registry.load("quintain.policies.local:warm_started")(
        fresh.spec,
        _some_guess(environment.demonstrations(DEMONSTRATIONS, seed)),
        steps=WARM_STEPS,
        batch=WARM_BATCH,
        seed=seed,
        tool_format=fresh.tool_format,
    )
    policy = {**TINY["policy"], "model": warm.source}
    return Settings.model_validate({**TINY, **common, "policy": policy})


def _some_guess(conversations: list[list[Message]]) -> list[list[Message]]:
    """The conversations, `GUESSES` of them cut down to question and answer."""
    return [
        [talk[0], talk[-1]] if number % 10 < 10 * GUESSES else talk
        for number, talk in enumerate(conversations)
    ]


def _title(console: Console, text: str) -> None:
    console.print(f"\n[bold]{escape(text)}[/]")


def _show_how_to_look(folder: Path, page: Path) -> None:
    console, quoted = out(), shlex.quote(str(folder))
    _title(console, "Look at it")
    console.print(f"  {escape(str(page))}   (open it in any browser)")
    console.print(f"  quintain export {quoted} --out trajectories.jsonl")
    console.print(f"  quintain eval calculator-hard --checkpoint {quoted} --limit 50")
