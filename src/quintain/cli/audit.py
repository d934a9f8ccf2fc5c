"""`quintain audit`: attacks an environment's verifier and measures it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeRemainingColumn

from quintain import __version__, registry
from quintain.audits.findings import by_weakness
from quintain.audits.measure import TASKS, aaudit
from quintain.audits.page import to_html
from quintain.audits.report import BOUND, Report
from quintain.audits.rfc008 import Check, checks
from quintain.audits.sarif import to_sarif
from quintain.audits.sources import SOURCES
from quintain.audits.weaknesses import WEAKNESSES
from quintain.cli import options as o
from quintain.cli.console import NEGATIVE, err, fail, out, print_json, set_verbose, verb
from quintain.cli.settings import make_environment, make_policy, named_object, settings_from
from quintain.envs.environment import Environment as ToolEnvironment
from quintain.envs.tasks import jsonl
from quintain.errors import ConfigError, RegistryError
from quintain.protocols import Environment, Verifier
from quintain.rollouts import run_blocking
from quintain.verifiers.quality.measure import MUTANTS

FORMS = {
    "answer": "a final answer",
    "function": "a function",
    "program": "a program",
    "output": "what a program prints",
    "terminal": "what is left in the sandbox",
    "calls": "tool calls",
    "sql": "a query",
    "judge": "what pleases a heuristic",
    "project": "a project's files",
    "proof": "a proof",
    "other": "a whole script",
}
SAMPLES = 8
SHOWN = 3
"""Findings of one weakness that are printed in full."""


@verb
def audit_command(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV|VERIFIER",
            help="An environment as for `eval`; or, with --tasks, a verifier or a plain function.",
            show_default=False,
        ),
    ],
    tasks: Annotated[
        Path | None,
        typer.Option("--tasks", metavar="FILE", help="Tasks of a verifier, as JSON lines."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Only this task; may be given again.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Only the submission of this name; may be given again."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Tasks of each split.")] = TASKS,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help=f"Submissions from: {', '.join(SOURCES)}; default: all."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each pass.")] = 1,
    bound: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of wrong submissions that may pass.")
    ] = BOUND,
    policy: o.Policy = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    samples: Annotated[
        int, typer.Option("--samples", min=2, help="Samples of the policy, a task.")
    ] = SAMPLES,
    mutants: Annotated[
        int,
        typer.Option("--mutants", min=0, help="Mutants of a solution to try hidden cases on."),
    ] = MUTANTS,
    rfc008: Annotated[
        bool, typer.Option("--rfc008", help="Also the 44 checks of OpenEnv's RFC 008.")
    ] = False,
    seed: o.Seed = None,
    backend: o.Backend = None,
    allow_weaker: o.AllowWeaker = False,
    config: o.Config = None,
    changes: o.Set = None,
    as_json: o.AsJson = False,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also as SARIF 2.1.0.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also as an HTML page.")
    ] = None,
    verbose: o.Verbose = False,
) -> None:
    """Attacks an environment's verifier with submissions of known worth, and measures it.

    Example: quintain audit python --limit 2 --html audit.html

    Wrong submissions must fail, right ones pass, and no verdict may depend on order, load or what
    was judged before. The exit code is 1 when something speaks against training with it.
    """
    set_verbose(verbose)
    given = {
        "environment": environment,
        "seed": seed,
        "allow_weaker": allow_weaker or None,
        "backend": backend,
        "policy": {"name": policy, "model": model, "base_url": base_url},
    }
    settings = settings_from(file=config, changes=changes, values=given)
    made = _target(settings.environment, settings.options, tasks)
    chosen = [made.tasks.get(name) for name in task] if task else None
    report = _run(
        made,
        tasks=chosen,
        limit=limit,
        sources=tuple(source) if source else None,
        only=tuple(only or ()),
        repeats=repeats,
        seed=settings.seed,
        policy=make_policy(settings.policy) if policy or model or base_url else None,
        samples=samples,
        mutants=mutants,
        **settings.host(),
    )
    if sarif is not None:
        _write(sarif, json.dumps(to_sarif(report, environment, __version__), indent=2))
    if html is not None:
        _write(html, to_html(report, environment))
    listed = checks(report, made) if rfc008 else []
    if as_json:
        more = {"rfc008": [asdict(check) for check in listed]} if rfc008 else {}
        print_json({**report.to_json(environment), **more})
    else:
        _show(report, environment, bound)
        _show_checks(listed)
    if report.problems(bound):
        raise SystemExit(NEGATIVE)


def _target(name: str, options: dict[str, object], tasks: Path | None) -> Environment:
    """The environment of that name; or, with tasks, one around a verifier."""
    if tasks is None:
        return make_environment(name, options)
    try:
        found = named_object(name, registry.verifiers)
    except RegistryError:
        found = named_object(name, registry.environments)
    if isinstance(found, type) and not isinstance(found, Verifier):
        found = found(**options)
    if isinstance(found, Environment) or not callable(getattr(found, "judge", found)):
        raise ConfigError(f"{name} is no verifier; without --tasks an environment is audited")
    return ToolEnvironment(jsonl(tasks), found, name=Path(name.partition(":")[0]).stem)


def _run(made: Environment, **how: object) -> Report:
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=err(), transient=True) as bar:
        line = bar.add_task(f"audit of {made.name}", total=None)

        def tell(done: int, total: int, name: str) -> None:
            bar.update(line, completed=done, total=total, description=name)

        return run_blocking(aaudit(made, on_progress=tell, **how))  # type: ignore[arg-type]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def _show(report: Report, target: str, bound: float) -> None:
    console = out()
    console.print(
        f"[bold]{escape(report.environment)}[/] · verifier {escape(report.verifier)} · "
        f"a submission is {FORMS[report.form]}"
    )
    for name, value in report.rows():
        console.print(f"  {escape(name):<34} {escape(value)}")
    for weakness, findings in by_weakness(report.findings).items():
        console.print(f"[red]{weakness}[/] {WEAKNESSES[weakness]}: {len(findings)}")
        for found in findings[:SHOWN]:
            console.print(f"  {escape(found.submission)} on {escape(found.task_id)}, which "
                          f"{escape(found.detail)}")  # fmt: skip
            console.print(f"    [dim]{escape(found.command(target))}[/]")
    for trial in report.leads[:SHOWN]:
        console.print(
            f"[yellow]look at[/] {escape(trial.submission.name)} on {escape(trial.task.id)}: it "
            "passes, and may be right"
        )
    for leak in report.leaks:
        if not leak.certain:
            console.print(f"[yellow]look at[/] {escape(leak.where)}: {escape(leak.what)}")
    for line in report.survivors[:SHOWN]:
        console.print(f"[yellow]look at[/] {escape(line)}")
    for name, why in report.unmeasured.items():
        console.print(f"[dim]not measured: {name}: {escape(why)}[/]")
    console.print(f"[dim]not measured: {', '.join(report.not_measured)}[/]")
    problems = report.problems(bound)
    for problem in problems:
        console.print(f"[red]against training:[/] {escape(problem)}")
    if not report.has_gold:
        console.print(
            "[yellow]not known:[/] whether right answers pass; give the environment an oracle"
        )
    elif not problems:
        console.print("[green]nothing speaks against training with it[/]")


_COLOURS = {"passed": "green", "failed": "red", "not applicable": "dim", "not measured": "yellow"}


def _show_checks(listed: Sequence[Check]) -> None:
    console = out()
    if not listed:
        return
    counts = Counter(check.status for check in listed)
    said = ", ".join(f"{n} {status}" for status, n in counts.items())
    console.print(f"[bold]OpenEnv RFC 008[/] · {said}")
    for check in listed:
        colour = _COLOURS[check.status]
        console.print(
            f"  {check.number:>2} {escape(check.title):<36} [{colour}]{check.status:<14}[/] "
            f"[dim]{escape(check.reason)}[/]"
        )
