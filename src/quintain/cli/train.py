"""`quintain train`: checks, training with evaluations on the way, selection, held-out tasks."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quintain.cli import options as o
from quintain.cli.console import can_resume, err, fail, out, print_json, set_verbose, verb
from quintain.cli.follow import Follower
from quintain.cli.progress import duration
from quintain.cli.sandboxes import show_sandboxes
from quintain.cli.session import Session, ready, session
from quintain.cli.settings import make_environment, record, refuse_other_policy, write_config
from quintain.errors import ConfigError
from quintain.loop import Selection, TrainRun, atrain
from quintain.record import Json
from quintain.rollouts import run_blocking
from quintain.store import new_folder


@verb
def train_command(
    environment: o.Environment = "",
    policy: o.Policy = None,
    model: o.Model = None,
    checkpoint: o.Checkpoint = None,
    steps: Annotated[int | None, typer.Option(help="Training steps in all.")] = None,
    evals: Annotated[
        list[str] | None,
        typer.Option(
            "--eval",
            metavar="[NAME=]ENV",
            help="By what checkpoints are chosen; may be given again; default: ENV itself.",
        ),
    ] = None,
    seed: o.Seed = None,
    temperature: o.Temperature = None,
    out_folder: o.Out = None,
    resume: o.Resume = False,
    allow_weaker: o.AllowWeaker = False,
    backend: o.Backend = None,
    sandboxes: o.Sandboxes = None,
    no_audit: Annotated[
        bool, typer.Option("--no-audit", help="Train with an unaudited verifier; it is recorded.")
    ] = False,
    config: o.Config = None,
    changes: o.Set = None,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Trains a local policy and picks the checkpoint that deserves to ship.

    Example: quintain train calculator --policy smollm2 --set policy.lora=16 --steps 8

    Everything that can be set: `--set train.KEY=VALUE` (group_size, groups_per_step, lr, mode,
    max_staleness, …) and `--set evaluation.KEY=VALUE` (samples, limit, heldout_limit, …).
    """
    set_verbose(verbose)
    if resume and out_folder is None:
        fail("--resume needs --out RUN, the folder of the run to go on with")
    stored = out_folder / "config.toml" if out_folder else None
    if resume and not environment and config is None and stored and stored.exists():
        config = stored
    made = session(
        {
            "environment": environment or None,
            "policy": {"name": policy, "model": model, "checkpoint": checkpoint},
            "train": {"steps": steps},
            "sampling": {"temperature": temperature},
            "seed": seed,
            "allow_weaker": allow_weaker or None,
            "backend": backend,
            "sandboxes": sandboxes,
            "evals": _evals(evals or []),
            "evaluation": {"audit_tasks": 0 if no_audit else None},
        },
        file=config,
        changes=changes,
    )
    folder = out_folder or new_folder(f"train-{made.environment.name}")
    can_resume(f"quintain train --resume --out {shlex.quote(str(folder))}")
    run, times = run_blocking(train_session(made, folder, resume, err() if as_json else out()))
    chosen = run.select()
    if as_json:
        print_json({"folder": str(folder), **selection_json(chosen), "times_s": times})
    else:
        show_selection(chosen)
        show_times(times)
        show_sandboxes(run.store)
        out().print(f"stored in {escape(str(folder))}; look at it with:")
        out().print(f"  quintain report {shlex.quote(str(folder))}")


async def train_session(
    made: Session, folder: Path, resume: bool, console: Console
) -> tuple[TrainRun, dict[str, float]]:
    """Trains as the settings say, telling how it goes; returns the run and where the time went."""
    if not (folder / "run.sqlite").exists():
        write_config(folder, made.settings)
    elif resume:
        refuse_other_policy(folder, made.settings)
    settings = made.settings
    follower = Follower(folder, settings.train.steps, console)
    watcher = asyncio.create_task(follower.watch())
    evals = {name: make_environment(env, {}) for name, env in settings.evals.items()}
    try:
        async with ready(made.policy, settings.policy.checkpoint):
            run = await atrain(
                made.environment,
                made.policy,
                config=settings.train,
                evals=evals or None,
                evaluation=settings.evaluation,
                run=folder,
                resume=resume,
                on_event=follower,
                host=settings.host(),
                about=record(settings, made.command),
            )
    finally:
        watcher.cancel()
    return run, dict(follower.times)


def _evals(given: list[str]) -> dict[str, Json]:
    """`NAME=ENV`, or an environment by whose own name it is known."""
    found: dict[str, Json] = {}
    for text in given:
        name, equals, environment = text.partition("=")
        if not equals:
            name, environment = text, text
        if not name or not environment:
            raise ConfigError(f"an eval is written NAME=ENV or ENV, got {text!r}")
        found[name] = environment
    return found


def show_selection(chosen: Selection) -> None:
    """Prints the selected checkpoint, and the held-out tasks before and after."""
    console = out()
    console.print("\n[bold]Held-out tasks, before and after[/]")
    console.print(f"  sampled          {chosen.heldout_before.pass_at(1)} before")
    console.print(f"                   {chosen.heldout.pass_at(1)} after")
    if chosen.greedy is not None and chosen.greedy_before is not None:
        console.print(f"  greedy           {chosen.greedy_before.pass_at(1)} before")
        console.print(f"                   {chosen.greedy.pass_at(1)} after")
    console.print(f"  difference       {escape(str(chosen.gain))}")
    beyond = chosen.gain.difference.low > 0
    console.print(
        "  the interval, clustered by task, "
        + ("[green]excludes 0[/]" if beyond else "[red]does not exclude 0[/]")
    )
    for run in (chosen.heldout_before, chosen.heldout):
        for warning in run.warnings:
            console.print(f"[yellow]warning:[/] {escape(run.purpose)}: {escape(warning)}")


def show_times(times: dict[str, float]) -> None:
    """Prints where the time went."""
    console = out()
    console.print("\n[bold]Where the time went[/]")
    for part, seconds in times.items():
        console.print(f"  {part:<36} {duration(seconds):>12}")


def selection_json(chosen: Selection) -> dict[str, Json]:
    """The same as JSON."""
    gain = chosen.gain
    greedy = {
        when: None if run is None else run.summary()
        for when, run in (("before", chosen.greedy_before), ("after", chosen.greedy))
    }
    return {
        "selected": {"step": chosen.step, "version": chosen.version, "why": chosen.why},
        "heldout": {
            "before": chosen.heldout_before.summary(),
            "after": chosen.heldout.summary(),
        },
        "greedy": greedy,
        "gain": {
            "value": gain.difference.value,
            "low": gain.difference.low,
            "high": gain.difference.high,
            "tasks": gain.tasks,
            "p_permutation": gain.p_permutation,
        },
    }
