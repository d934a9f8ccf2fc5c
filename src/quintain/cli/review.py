"""`quintain review`: a person labels a sample of a run's verdicts; error rates follow."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.markup import escape

from quintain.cli import options as o
from quintain.cli.console import can_resume, err, fail, out, print_json, verb
from quintain.evals.review import Item, Label, Review
from quintain.viewer.transcript import rich_transcript, verdict_pieces

KEYS: dict[str, Label] = {label[0]: label for label in get_args(Label)}
Ask = Callable[[str], str]


@verb
def review_command(
    run: o.RunFolder,
    purpose: Annotated[
        str | None, typer.Option(help="Only these: `train`, or an eval's purpose; default: all.")
    ] = None,
    passes: Annotated[int, typer.Option(min=0, help="Passes to look at, drawn at random.")] = 20,
    fails: Annotated[int, typer.Option(min=0, help="Fails to look at, drawn at random.")] = 20,
    seed: o.Seed = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Draw anew; labels given so far stay.")
    ] = False,
    show_verdict: Annotated[
        bool, typer.Option("--show-verdict", help="Before the label, not after it.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write what has no label, as JSON lines."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--import", metavar="FILE", help="Take labels from JSON lines."),
    ] = None,
    reviewer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kept with each label.")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Shows a sample of a run's trajectories, takes labels, and estimates the verifier's errors.

    Example: quintain review runs/RUN --export todo.jsonl

    All flagged verdicts are shown, and random passes and fails: accept what deserves to pass,
    reject what does not. The verdict is told after your label. Stop with q and go on later.
    """
    by = reviewer if reviewer is not None else _user()
    with Review.open(
        run, purpose=purpose, passes=passes, fails=fails, seed=seed or 0, fresh=fresh
    ) as review:
        before = len(review.labels)
        if labels is not None:
            taken = review.import_jsonl(labels, by)
            err().print(escape(f"{taken} labels taken from {labels}"))
        if export is not None:
            try:
                written = review.export_jsonl(export)
            except OSError as error:
                fail(f"cannot write {export}: {error.strerror}")
            err().print(escape(f"{written} without a label written to {export}"))
        elif labels is None and not as_json and sys.stdin.isatty():
            can_resume(f"quintain review {run}")
            ask_all(review, _prompt, by, show_verdict=show_verdict)
        if len(review.labels) > before:
            review.keep_rates()
        if as_json:
            print_json(review.to_json())
        else:
            out().print(escape(str(review)))


def ask_all(review: Review, ask: Ask, by: str, *, show_verdict: bool = False) -> None:
    """Shows one trajectory after another and takes a label of each, until there is none, or q."""
    console = out()
    for item in review.todo:
        done, total = len(review.labels), len(review.items)
        console.rule(escape(f"{done + 1} of {total}: {item.key.task_id} {item.key.purpose}"))
        console.print(rich_transcript(item.trajectory if show_verdict else item.blind))
        answer = _answer(ask)
        if answer == "q":
            return
        if answer == "s":
            continue
        note = ask("note (may be empty)").strip()
        review.label(item.key, KEYS[answer], note, by)
        if not show_verdict:
            _tell_verdict(item)


def _prompt(text: str) -> str:
    try:
        return str(typer.prompt(text, default="", show_default=False))
    except typer.Abort:
        raise KeyboardInterrupt from None


def _answer(ask: Ask) -> str:
    while True:
        said = ask("does it deserve to pass? a(ccept), r(eject), u(nsure), s(kip), q(uit)")
        first = said.strip().lower()[:1]
        if first in {*KEYS, "s", "q"}:
            return first


def _tell_verdict(item: Item) -> None:
    verdict = item.trajectory.verdict
    for piece in () if verdict is None else verdict_pieces(verdict):
        out().print(escape(f"  {piece.text}"))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
