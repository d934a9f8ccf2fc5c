"""`quintain export`: the trajectories of a stored run as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from quintain.cli import options as o
from quintain.cli.console import err, fail, verb
from quintain.store import Store


@verb
def export_command(
    run: o.RunFolder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    purpose: Annotated[
        str | None, typer.Option(help="Only these: `train`, or an eval's purpose; default: all.")
    ] = None,
) -> None:
    """Writes the final trajectories of a stored run as JSON lines.

    Example: quintain export runs/RUN --out trajectories.jsonl
    """
    with Store.read(run) as store:
        known = store.purposes()
        if purpose is not None and purpose not in known:
            fail(
                f"{run} holds nothing under {purpose!r}; it holds: {', '.join(known) or 'nothing'}"
            )
        try:
            written = store.export_jsonl(out, purpose=purpose)
        except OSError as error:
            fail(f"cannot write {out}: {error.strerror}")
    err().print(escape(f"{written} trajectories written to {out}"))
