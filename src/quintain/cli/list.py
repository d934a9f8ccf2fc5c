"""`quintain list`: what can be named on the command line and in settings."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from quintain import registry
from quintain.cli import options as o
from quintain.cli.console import fail, out, print_json, verb


@verb
def list_command(
    table: Annotated[
        str, typer.Argument(help="environments, policies, …; default: all.", show_default=False)
    ] = "",
    as_json: o.AsJson = False,
) -> None:
    """Lists environments, policies, verifiers, algorithms and other plug-ins.

    Example: quintain list environments

    Whatever is listed can also be given as module:attribute, and packages may add their own under
    the entry-point groups quintain.environments, quintain.policies, and so on.
    """
    if table and table not in registry.TABLES:
        fail(f"there is no table {table!r}; there are: {', '.join(registry.TABLES)}")
    chosen = [registry.TABLES[table]] if table else list(registry.TABLES.values())
    chosen = [one for one in chosen if one.names()]
    if as_json:
        print_json({one.table: {name: one.target(name) for name in one.names()} for one in chosen})
        return
    for one in chosen:
        shown = Table(box=None, pad_edge=False, show_header=False)
        for name in one.names():
            words = one.summary(name) or one.target(name)
            shown.add_row(f"  {escape(name)}", f"[dim]{escape(words)}[/]")
        out().print(f"[bold]{one.table}[/]")
        out().print(shown)
