"""`quintain rescore`: stored trajectories judged again, without sampling."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from quintain import registry
from quintain.cli import options as o
from quintain.cli.console import NEGATIVE, can_resume, err, fail, out, print_json, set_verbose, verb
from quintain.cli.settings import make_environment, named_object
from quintain.errors import ConfigError
from quintain.evals import Rescored, arescore
from quintain.protocols import Environment, Verifier
from quintain.rollouts import run_blocking
from quintain.store import Store, new_folder
from quintain.verifiers.function import as_verifier

SHOWN = 20
"""Changes that are printed; --json has all."""


@verb
def rescore_command(
    run: o.RunFolder,
    verifier: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A name from `quintain list`, path/to/file.py:attribute, or module:attribute; "
            "default: the environment's own, as it is today.",
        ),
    ] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option(
            "--env", metavar="ENV", help="Where the tasks come from; default: as the run says."
        ),
    ] = None,
    purpose: Annotated[
        str | None, typer.Option(help="Only these: `train`, or an eval's purpose; default: all.")
    ] = None,
    out_folder: o.Out = None,
    resume: o.Resume = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Verdicts at once.")] = 8,
    backend: o.Backend = None,
    allow_weaker: o.AllowWeaker = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Judges a stored run again and lists the verdicts that changed; nothing is sampled.

    Example: quintain rescore runs/RUN --verifier my_env.py:stricter

    The new verdicts go into a run of their own. The exit code is 1 when something could not be
    judged: its verdict is unknown, not 0.
    """
    set_verbose(verbose)
    if resume and out_folder is None:
        fail("--resume needs --out RUN, the folder of the run to go on with")
    environments = environments_of(run, environment or [])
    made = None if verifier is None else verifier_of(verifier)
    folder = out_folder or new_folder(f"rescore-{run.name}")
    again = ["quintain", "rescore", str(run), "--resume", "--out", str(folder)]
    again += ["--verifier", verifier] if verifier else []
    can_resume(shlex.join(again))
    columns = (TextColumn("{task.description}"), MofNCompleteColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        line = bar.add_task(f"judging {run.name} again", total=None)
        rescored = run_blocking(
            arescore(
                run,
                made,
                environment=environments,
                out=folder,
                purpose=purpose,
                resume=resume,
                concurrency=concurrency,
                on_progress=lambda done, total: bar.update(line, completed=done, total=total),
                backend=backend or "native",
                allow_weaker=allow_weaker,
            )
        )
    if as_json:
        print_json(rescored.to_json())
    else:
        _show(rescored)
    if rescored.not_judged:
        raise SystemExit(NEGATIVE)


def _show(rescored: Rescored) -> None:
    console = out()
    console.print(f"[bold]{escape(str(rescored).partition(chr(10))[0])}[/]")
    for change in rescored.changes[:SHOWN]:
        colour = "red" if change.kind.endswith("failed") else "yellow"
        console.print(f"  [{colour}]{escape(str(change))}[/]")
    if len(rescored.changes) > SHOWN:
        console.print(f"  [dim]and {len(rescored.changes) - SHOWN} more: --json lists them all[/]")
    reasons: dict[str, int] = {}
    for why in rescored.not_judged.values():
        reasons[why] = reasons.get(why, 0) + 1
    for why, count in reasons.items():
        console.print(f"[yellow]not judged:[/] {count}: {escape(why)}")
    for found in rescored.runs():
        console.print(escape(f"{found.environment} · {found.purpose}: pass@1 {found.pass_at(1)}"))
    console.print(f"stored in {escape(str(rescored.folder))}")


def environments_of(run: Path, given: list[str]) -> dict[str, Environment]:
    """The environments of a stored run, by name: those given, or those that it was begun with.

    Raises:
        ConfigError: it does not say, and none is given.
    """
    if given:
        found = [make_environment(name, {}) for name in given]
        return {environment.name: environment for environment in found}
    with Store.read(run) as store:
        settings = (store.meta("config") or {}).get("settings") or {}
        known = {row.key.environment for row in store.rows(final=None)}
    out: dict[str, Environment] = {}
    if settings.get("environment"):
        made = make_environment(settings["environment"], settings.get("options") or {})
        out[made.name] = made
    for name in (settings.get("evals") or {}).values():
        made = make_environment(str(name).removeprefix("bench:"), {})
        out.setdefault(made.name, made)
    for name in sorted(known - out.keys()):
        if name in registry.environments.names():
            out[name] = make_environment(name, {})
    if not out:
        raise ConfigError(
            f"{run} was not started by a command, so that its environment is not known: give "
            "--env path/to/file.py:attribute"
        )
    return out


def verifier_of(name: str) -> Verifier:
    """A verifier by name; an environment stands for its own.

    Raises:
        ConfigError: what is named is none.
    """
    found = named_object(name, registry.verifiers)
    if inspect.isclass(found):
        found = found()
    return found.verifier if isinstance(found, Environment) else as_verifier(found)
