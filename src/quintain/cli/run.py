"""`quintain run`: plays some tasks and prints what happened; nothing is stored.

With `--only TASK:SAMPLE`, `--purpose` and `--seed` it plays a stored sample again: every seed
follows from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer

from quintain.cli import options as o
from quintain.cli.console import NEGATIVE, err, out, print_json, set_verbose, verb
from quintain.cli.progress import Bar
from quintain.cli.session import Session, ready, session
from quintain.errors import ConfigError
from quintain.rollouts import Budget, Host, Job, Progress, run_blocking, schedule
from quintain.task import Split
from quintain.trajectory import Trajectory
from quintain.viewer.transcript import rich_transcript


@verb
def run_command(
    environment: o.Environment = "",
    policy: o.Policy = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    checkpoint: o.Checkpoint = None,
    split: o.Split = None,
    samples: o.Samples = None,
    limit: Annotated[int, typer.Option(help="Tasks to play, where --only names none.")] = 1,
    only: o.Only = None,
    purpose: Annotated[
        str, typer.Option(help="What seeds are derived from: that of a stored sample plays it.")
    ] = "trial",
    seed: o.Seed = None,
    temperature: o.Temperature = None,
    concurrency: o.Concurrency = None,
    max_cost_usd: o.MaxCost = None,
    max_tokens: o.MaxTokens = None,
    allow_weaker: o.AllowWeaker = False,
    backend: o.Backend = None,
    sandboxes: o.Sandboxes = None,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out of long texts.")] = False,
    config: o.Config = None,
    changes: o.Set = None,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Plays some tasks and prints what happened, verdicts included.

    Example: quintain run arithmetic --policy scripted --set "policy.script=The answer is 7"

    The exit code is 1 when a rollout ended in an error.
    """
    set_verbose(verbose)
    made = session(
        {
            "environment": environment or None,
            "policy": {
                "name": policy,
                "model": model,
                "base_url": base_url,
                "checkpoint": checkpoint,
            },
            "sampling": {"temperature": temperature},
            "seed": seed,
            "allow_weaker": allow_weaker or None,
            "backend": backend,
            "sandboxes": sandboxes,
            "eval": {
                "split": split,
                "samples": samples,
                "concurrency": concurrency,
                "max_cost_usd": max_cost_usd,
                "max_tokens": max_tokens,
            },
        },
        file=config,
        changes=changes,
    )
    jobs = _jobs(made, only or [], None if split is None else Split(split), limit, purpose)
    with Bar(f"{made.environment.name} · {made.policy.name}") as bar:
        played = run_blocking(_play(made, jobs, bar))
    if as_json:
        print_json([trajectory.model_dump(mode="json") for trajectory in played])
    else:
        for trajectory in played:
            again = ("--only", f"{trajectory.task_id}:{trajectory.sample_index}")
            line = made.line("run", *again, "--seed", str(made.settings.seed), "--purpose", purpose)
            text = rich_transcript(trajectory, reproduce=line, limit=None if full else 6_000)
            out().print(text)
    if len(played) < len(jobs):
        err().print(f"{len(jobs) - len(played)} were not started: the budget is used up")
    if any(t.outcome is not None and t.outcome.host_fault for t in played):
        raise typer.Exit(NEGATIVE)


def _jobs(
    made: Session, only: Sequence[str], split: Split | None, limit: int, purpose: str
) -> list[Job]:
    """The samples to play; without a split, of the first one that has tasks."""
    source, samples = made.environment.tasks, made.settings.eval.samples
    if not only:
        for candidate in (split,) if split else (Split.EVAL, Split.TRAIN, Split.HELDOUT):
            tasks = list(islice(source.split(candidate), limit))
            if tasks:
                return [Job(task, purpose, index) for task in tasks for index in range(samples)]
        raise ConfigError(
            f"{made.environment.name} has no tasks" + (f" in {split}" if split else "")
        )
    jobs = []
    for name in only:
        task_id, colon, number = name.rpartition(":")
        if colon and number.isdecimal():
            jobs.append(Job(source.get(task_id), purpose, int(number)))
        else:
            task = source.get(name)
            jobs += [Job(task, purpose, index) for index in range(samples)]
    return jobs


async def _play(made: Session, jobs: Sequence[Job], bar: Bar) -> list[Trajectory]:
    """Plays them side by side; those that were played, in the order asked for."""
    settings = made.settings
    played: dict[tuple[str, int], Trajectory] = {}

    def on_done(trajectory: Trajectory, progress: Progress) -> None:
        played[trajectory.task_id, trajectory.sample_index] = trajectory
        bar(trajectory, progress)

    host = Host(
        made.environment,
        made.policy,
        run_seed=settings.seed,
        sampling=settings.sampling,
        budget=Budget(settings.eval.max_cost_usd, settings.eval.max_tokens),
        **settings.host(),
    )
    async with ready(made.policy, settings.policy.checkpoint), host:
        await schedule(jobs, host, concurrency=settings.eval.concurrency, on_done=on_done)
    wanted = [(job.task.id, job.sample_index) for job in jobs]
    return [played[key] for key in wanted if key in played]
