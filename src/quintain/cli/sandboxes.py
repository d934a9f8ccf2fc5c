"""One line on how a run got its sandboxes, where that was chosen or a pool had a part in it."""

from __future__ import annotations

from rich.markup import escape

from quintain.cli.console import out
from quintain.rollouts.host import CHOSEN, POOLED
from quintain.store import Store


def show_sandboxes(store: Store) -> None:
    """Prints what was chosen and why, and what the pool did; nothing for plain fresh ones."""
    chosen = {
        f"{data['sandboxes']}: {data['why']}": None
        for _, _, data in store.event_rows(CHOSEN)
        if data["asked"] == "auto"
    }
    for line in chosen:
        out().print(f"sandboxes {escape(line)}")
    totals: dict[str, int] = {}
    for _, _, data in store.event_rows(POOLED):
        for name, value in data.items():
            if isinstance(value, int):
                totals[name] = totals.get(name, 0) + value
    if totals:
        told = ", ".join(f"{value} {name}" for name, value in totals.items())
        out().print(f"pool of sandboxes: {escape(told)}")
