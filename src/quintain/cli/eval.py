"""`quintain eval`: an environment, k samples a task, pass@k with intervals."""

from __future__ import annotations

import shlex
from itertools import islice

from rich.markup import escape
from rich.table import Table

from quintain.cli import options as o
from quintain.cli.console import NEGATIVE, can_resume, fail, out, print_json, set_verbose, verb
from quintain.cli.progress import Bar, counted
from quintain.cli.sandboxes import show_sandboxes
from quintain.cli.session import Session, ready, session
from quintain.cli.settings import record, refuse_other_policy, write_config
from quintain.evals import EvalRun, aevaluate
from quintain.rollouts import run_blocking
from quintain.store import new_folder

SHOWN_FAILURES = 3


@verb
def eval_command(
    environment: o.Environment = "",
    policy: o.Policy = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    checkpoint: o.Checkpoint = None,
    split: o.Split = None,
    samples: o.Samples = None,
    limit: o.Limit = None,
    only: o.Only = None,
    seed: o.Seed = None,
    temperature: o.Temperature = None,
    concurrency: o.Concurrency = None,
    max_cost_usd: o.MaxCost = None,
    max_tokens: o.MaxTokens = None,
    out_folder: o.Out = None,
    resume: o.Resume = False,
    retry_errors: o.RetryErrors = False,
    allow_weaker: o.AllowWeaker = False,
    backend: o.Backend = None,
    sandboxes: o.Sandboxes = None,
    config: o.Config = None,
    changes: o.Set = None,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Evaluates a policy on an environment and prints pass@k with intervals.

    Example: quintain eval arithmetic --policy scripted --set "policy.script=The answer is 7"

    The exit code is 1 when samples ended in errors, or when a budget stopped the run.
    """
    set_verbose(verbose)
    if (resume or retry_errors) and out_folder is None:
        fail("--resume and --retry-errors need --out RUN, the folder of the run to go on with")
    if (resume or retry_errors) and out_folder and not (out_folder / "run.sqlite").exists():
        fail(f"there is no run in {out_folder} to go on with")
    stored = out_folder / "config.toml" if out_folder else None
    if resume and not environment and config is None and stored and stored.exists():
        config = stored
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
                "limit": limit,
                "concurrency": concurrency,
                "max_cost_usd": max_cost_usd,
                "max_tokens": max_tokens,
            },
        },
        file=config,
        changes=changes,
    )
    folder = out_folder or new_folder(made.environment.name)
    if not (folder / "run.sqlite").exists():
        write_config(folder, made.settings)
    elif resume or retry_errors:
        refuse_other_policy(folder, made.settings)
    can_resume(f"quintain eval --resume --out {shlex.quote(str(folder))}")
    with Bar(f"{made.environment.name} · {made.policy.name}") as bar:
        run = run_blocking(
            _evaluate(
                made,
                bar,
                folder=str(folder),
                only=only or [],
                resume=resume or retry_errors,
                retry_errors=retry_errors,
            )
        )
    if as_json:
        print_json(_as_json(run))
    else:
        show(run)
    if run.errors or run.stopped:
        raise SystemExit(NEGATIVE)


async def _evaluate(
    made: Session, bar: Bar, *, folder: str, only: list[str], resume: bool, retry_errors: bool
) -> EvalRun:
    settings = made.settings
    how = settings.eval
    async with ready(made.policy, settings.policy.checkpoint):
        return await aevaluate(
            made.environment,
            made.policy,
            split=how.split,
            samples=how.samples,
            limit=how.limit,
            only=only,
            concurrency=how.concurrency,
            max_cost_usd=how.max_cost_usd,
            max_tokens=how.max_tokens,
            sampling=None if settings.sampling == made.environment.sampling else settings.sampling,
            seed=settings.seed,
            run=folder,
            resume=resume,
            retry_errors=retry_errors,
            on_done=bar,
            config=record(settings, made.command),
            **settings.host(),
        )


def _as_json(run: EvalRun) -> dict[str, object]:
    return {
        **run.summary(),
        "failures": [
            {
                "task": sample.key.task_id,
                "sample": sample.key.sample_index,
                "outcome": str(sample.outcome),
                "reproduce": sample.reproduce,
            }
            for sample in (*run.failures, *run.errors)
        ],
    }


def show(run: EvalRun) -> None:
    """Prints the scores, the warnings, and how to see the failures."""
    console = out()
    scores = run.scores
    per_task = max((n for n, _ in scores.counts().values()), default=0)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "estimate [95 %]", f"with {scores.excluded} excluded as failures"):
        table.add_column(heading)
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64) if k <= max(per_task, 1)):
        table.add_row(
            f"pass@{k}",
            str(run.pass_at(k).interval),
            str(run.pass_at(k, excluded_as_failures=True).interval),
        )
    if scores.graded:
        table.add_row("mean reward", str(run.mean()), str(run.mean(excluded_as_failures=True)))
    console.print(
        f"[bold]{escape(run.environment)}[/] · {escape(run.purpose)} · "
        f"{scores.tasks} tasks, {scores.samples} samples"
    )
    console.print(table)
    counts = counted({str(outcome): n for outcome, n in run.outcomes.items()})
    cost = f" · ${scores.cost_usd:.4f}" if scores.cost_usd else ""
    console.print(f"{counts or 'no sample'}{cost}")
    show_sandboxes(run.store)
    for warning in run.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
    _show_failures(run)
    console.print(f"stored in {escape(str(run.folder))}; look at it with:")
    console.print(f"  quintain report {shlex.quote(str(run.folder))}")


def _show_failures(run: EvalRun) -> None:
    console = out()
    for title, samples in (("failed", run.failures), ("errors", run.errors)):
        if samples:
            console.print(
                f"[dim]{title}, {min(SHOWN_FAILURES, len(samples))} of {len(samples)}:[/]"
            )
        for sample in islice(samples, SHOWN_FAILURES):
            console.print(f"  {escape(sample.reproduce)}")
