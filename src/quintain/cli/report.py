"""`quintain report`: a stored run as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintain.cli import options as o
from quintain.cli.console import fail, print_json, verb
from quintain.viewer.report import report


@verb
def report_command(
    run: o.RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write; default: report.html in RUN."),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Writes a stored run as one HTML file: scores, curves, transcripts.

    Example: quintain report runs/RUN

    The run may still be going on; open the file in any browser.
    """
    try:
        written = report(run, out)
    except OSError as error:
        fail(f"cannot write {out or run}: {error.strerror}")
    if as_json:
        print_json({"report": str(written)})
    else:
        typer.echo(written)
