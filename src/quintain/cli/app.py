"""The table of verbs. `quintain --help` loads none of them, `quintain VERB` loads that one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from quintain import __version__, registry

VERBS = {
    "quickstart": ("Prove the sandbox, then evaluate, train and evaluate a small model.", "Start"),
    "init": ("Write a new package with an environment and its tests.", "Start"),
    "doctor": ("Say what this machine can do, and what to do about the rest.", "Start"),
    "list": ("List environments, policies, verifiers, algorithms and other plug-ins.", "Start"),
    "images": ("List, add, build and remove what sandboxes are based on.", "Start"),
    "audit": ("Attack an environment's verifier, and measure it.", "Work"),
    "run": ("Play some tasks and print what happened.", "Work"),
    "debug": ("Play a task by hand, as the policy; see hidden state and verdict.", "Work"),
    "eval": ("Evaluate a policy on an environment: pass@k with intervals.", "Work"),
    "train": ("Train a local policy on an environment.", "Work"),
    "review": ("Look at a sample of a run's verdicts, and estimate the verifier's errors.", "Look"),
    "rescore": ("Judge a stored run again, with another verifier, without sampling.", "Look"),
    "report": ("Write a stored run as one HTML file.", "Look"),
    "export": ("Write the trajectories of a stored run as JSON lines.", "Look"),
}  # fmt: skip
"""Verb to (one line of help, panel); the function is `quintain.cli.VERB:VERB_command`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; always ends in `SystemExit`.

    Args:
        arguments: None: those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _application(_verb(given))(args=given, prog_name="quintain")


def _verb(arguments: Sequence[str]) -> str | None:
    """The first word that is not an option."""
    return next((word for word in arguments if not word.startswith("-")), None)


def _application(verb: str | None) -> typer.Typer:
    """All verbs, of which only `verb` is loaded; the others are there for the help."""
    app = typer.Typer(
        name="quintain",
        help="Environments, verifiers, sandboxes, evals and training for LLM agents.",
        epilog="quintain VERB --help shows an example that runs.",
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, (line, panel) in VERBS.items():
        if name == verb:
            function = registry.load(f"quintain.cli.{name}:{name}_command")
            app.command(name, rich_help_panel=panel)(function)
        else:
            app.command(name, help=line, rich_help_panel=panel)(_not_loaded)
    return app


def _not_loaded() -> None:
    raise AssertionError("the verb that is called is loaded")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quintain {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
