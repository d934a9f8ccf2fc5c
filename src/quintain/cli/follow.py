"""Tells how a training run goes on, line by line, and where the time went.

Events come from the loop's callback; the metrics of training steps are read from the store while
the run writes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from quintain.cli.progress import duration
from quintain.errors import StoreError
from quintain.record import Json
from quintain.store import Store
from quintain.training.guards import WARNING

LOOK_EVERY_S = 1.0


class Follower:
    """Prints what happens in a training run; `times` says where the time went.

    Args:
        folder: of the run.
        steps: training steps in all.
        console: where to print.
    """

    def __init__(self, folder: Path, steps: int, console: Console) -> None:
        self._console = console
        self.folder = folder
        self.steps = steps
        self.times: defaultdict[str, float] = defaultdict(float)
        """Seconds of wall clock by part."""
        self._since = time.monotonic()
        self._began_steps: float | None = None
        self._told = 0
        self._warned: set[tuple[int, str]] = set()
        self._first = 0
        self._pauses: list[tuple[str, Json]] = []
        """Pauses and their ends, as stored."""
        self._told_pauses = 0

    def __call__(self, kind: str, data: Mapping[str, Json]) -> None:
        """Prints an event; the `on_event` of the loop."""
        console = self._console
        match kind:
            case "preflight":
                colour = {"ok": "green", "warning": "yellow", "error": "red"}.get(
                    data["level"], "dim"
                )
                console.print(
                    f"  [{colour}]{data['level']:>7}[/]  {data['check']}: {escape(data['message'])}"
                )
                self._spent("checks")
            case "eval":
                self._print_new(self._new_steps())
                excluded = f", {data['excluded']:.0f} excluded" if data["excluded"] else ""
                console.print(
                    f"  [cyan]   eval[/]  step {data['step']}: {data['mean']:.3f} "
                    f"[{data['low']:.3f}, {data['high']:.3f}] on {escape(data['eval'])}{excluded}"
                )
                self._spent("evaluations on the eval split")
            case "heldout":
                how = "greedy" if data["greedy"] else "sampled"
                console.print(
                    f"  [magenta]held-out[/]  version {data['version']}, {how}: {data['mean']:.3f} "
                    f"[{data['low']:.3f}, {data['high']:.3f}]"
                )
                self._spent("evaluations on the held-out split")
            case "signal":
                console.print(
                    f"  [bold red] signal[/]  step {data['step']}: {escape(data['kind'])}: "
                    f"{escape(data['detail'])}"
                )
            case "selected":
                console.print(f"  [bold]selected[/]  {escape(data['why'])}")

    async def watch(self) -> None:
        """Prints training steps as they are stored; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._print_new(await asyncio.to_thread(self._new_steps))

    def _new_steps(self) -> dict[int, dict[str, float | None]]:
        """The metrics of the steps that were stored since the last look."""
        found: dict[int, dict[str, float | None]] = {}
        with suppress(StoreError), Store.read(self.folder) as store:  # it may not have begun yet
            rows = store.query(
                "SELECT step, name, value FROM metrics WHERE scope = 'train' AND step > ?",
                (self._told,),
            )
            with rows as cursor:
                for step, name, value in cursor:
                    found.setdefault(step, {})[name] = value
            self._pauses = [
                (kind, data)
                for kind, _, data in store.event_rows()
                if kind in ("training.paused", "training.unpaused")
            ]
            if self._began_steps is None:
                # Steps of a run that is resumed are known already.
                self._told = self._first = max(found, default=0)
                self._told_pauses = len(self._pauses)
                self._began_steps = time.monotonic()
                found.clear()
        return found

    def _print_new(self, found: Mapping[int, Mapping[str, float | None]]) -> None:
        for kind, data in self._pauses[self._told_pauses :]:
            told = data["message"] if kind == "training.paused" else "training goes on"
            self._console.print(f"  [bold yellow] pause[/]  {escape(told)}")
        self._told_pauses = len(self._pauses)
        for step in sorted(found):
            if step > self._told:
                self._told = step
                self._print_step(step, found[step])
                self._spent("training")

    def _print_step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        def figure(name: str) -> float:
            value = metrics.get(name)
            return float("nan") if value is None else value

        assert self._began_steps is not None
        each = (time.monotonic() - self._began_steps) / (step - self._first)
        left = duration(each * (self.steps - step))
        note = " · changed nothing (too few groups differ)" if figure("skipped_quiet") > 0 else ""
        self._console.print(
            f"  [dim]  train[/]  step {step}/{self.steps}: reward {figure('reward'):.2f} · "
            f"{figure('step_s'):.0f} s · learner busy {figure('learner_busy'):.0%} · "
            f"{_waited(metrics)}{left} left{note}"
        )
        if metrics.get("warnings"):
            self._print_warnings(step)

    def _print_warnings(self, step: int) -> None:
        with suppress(StoreError), Store.read(self.folder) as store:
            for _, _, data in store.event_rows(WARNING):
                if data["step"] == step and (step, data["name"]) not in self._warned:
                    self._warned.add((step, data["name"]))
                    self._console.print(
                        f"  [yellow]warning[/]  step {step}: {escape(data['message'])}"
                    )

    def _spent(self, part: str) -> None:
        now = time.monotonic()
        self.times[part] += now - self._since
        self._since = now


def _waited(metrics: Mapping[str, float | None]) -> str:
    """What the learner waited for most in a step, where that was a tenth of it or more."""
    step_s = metrics.get("step_s") or 0.0
    waits = {
        name.removeprefix("time/learner/"): seconds or 0.0
        for name, seconds in metrics.items()
        if name.startswith("time/learner/") and name != "time/learner/update"
    }
    what = max(waits, key=lambda name: waits[name], default="")
    if not what or waits[what] < 0.1 * step_s:
        return ""
    return f"{waits[what] / step_s:.0%} of it for {what} · "
