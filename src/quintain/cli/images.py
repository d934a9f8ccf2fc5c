"""`quintain images`: the bases and built layers of this machine."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from quintain.cli import options as o
from quintain.cli.console import err, fail, out, print_json, set_verbose, verb
from quintain.cli.settings import make_environment
from quintain.errors import ConfigError
from quintain.rollouts import run_blocking
from quintain.sandbox import host
from quintain.sandbox.images import debian
from quintain.sandbox.images.library import Library
from quintain.sandbox.images.store import Entry, Store
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

DAYS = 30.0


@verb
def images_command(
    action: Annotated[
        Literal["list", "add", "build", "prune"], typer.Argument(help="What to do.")
    ] = "list",
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[…]",
            help="add NAME PATH · build debian|DOCKERFILE|ENV · prune [KEY|NAME]…",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="build: what the image is called afterwards.")
    ] = None,
    mirror: Annotated[
        str, typer.Option(help="build debian: default: what the host's apt uses.")
    ] = "",
    suite: Annotated[str, typer.Option(help="build debian: default: the host's.")] = "",
    days: Annotated[
        float, typer.Option(help="prune: layers and archives that were not used for that long.")
    ] = DAYS,
    everything: Annotated[
        bool, typer.Option("--all", help="prune: whatever nobody uses, named bases included.")
    ] = False,
    allow_weaker: Annotated[
        bool, typer.Option(help="build: go on where a limit cannot be enforced.")
    ] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = False,
) -> None:
    """Lists, adds, builds and removes what sandboxes are based on.

    Example: quintain images list

    `add` names a folder with a root file system, a tar of `docker save` or an OCI image layout.
    `build` makes a Debian base (by debootstrap), or what a Dockerfile or an environment asks for.
    `prune` removes what was not used for a while, and never what a running sandbox uses.
    """
    set_verbose(verbose)
    given, store = words or [], Store()
    if action == "add":
        _expect(given, 2, "add NAME PATH")
        _show([_add(store, *given)], as_json)
    elif action == "build":
        _expect(given, 1, "build debian|DOCKERFILE|ENV")
        _show(_build(store, given[0], name, mirror, suite, allow_weaker), as_json)
    elif action == "prune":
        removed = prune(store, given, days, everything=everything)
        if as_json:
            print_json(removed)
        else:
            out().print(f"removed {len(removed)} images, {_size(sum(removed.values()))}")
        for row in rows(store):
            named = any(word in row.names or row.key.startswith(word) for word in given)
            if row.in_use and (everything or named):
                shown = ", ".join(row.names) or row.key
                err().print(f"{escape(shown)} stays: a running sandbox uses it")
    else:
        _expect(given, 0, "list")
        _show(rows(store), as_json)


def _expect(given: Sequence[str], count: int, usage: str) -> None:
    if len(given) != count:
        fail(f"expected: quintain images {usage}")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list."""

    key: str
    names: tuple[str, ...]
    kind: str
    source: str
    size_bytes: int
    """0 for a folder that is used where it lies."""
    made: str
    used: str
    """Last; empty: never."""
    in_use: bool


def rows(store: Store) -> list[Row]:
    """Everything that there is."""
    named: dict[str, list[str]] = {}
    found = []
    for name, target in store.names().items():
        if "key" in target:
            named.setdefault(target["key"], []).append(name)
        else:
            path = target["path"]
            found.append(Row("", (name,), "folder", path, 0, "", "", in_use=False))
    for entry in store.entries():
        used = store.used(entry.key)
        found.append(
            Row(
                entry.key,
                tuple(named.get(entry.key, ())),
                entry.kind,
                entry.source,
                entry.size_bytes,
                entry.made,
                datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds") if used else "",
                in_use=store.in_use(entry.key),
            )
        )
    return found


def prune(
    store: Store, chosen: Sequence[str], days: float, *, everything: bool = False
) -> dict[str, int]:
    """Removes images that nobody uses; key to bytes.

    Args:
        store: where they lie.
        chosen: keys (or their beginnings) and names; empty: by age.
        days: how long unused.
        everything: whatever its age, named ones too.

    Raises:
        ConfigError: nothing has a chosen name or key; nothing is removed then.
    """
    names, removed = store.names(), {}
    entries = store.entries()
    for word in chosen:
        if word not in names and not any(entry.key.startswith(word) for entry in entries):
            near = difflib.get_close_matches(word, list(names), n=1)
            hint = f", did you mean {near[0]}?" if near else "; `quintain images list` says which"
            raise ConfigError(f"no image has the name or key {word!r}{hint}")
    store.sweep()
    keys = {target.get("key", ""): name for name, target in names.items()}
    for entry in store.entries():
        name = keys.get(entry.key)
        if chosen:
            wanted = any(entry.key.startswith(word) or word == name for word in chosen)
        else:
            old = time.time() - store.used(entry.key) >= days * 86_400
            wanted = everything or (old and name is None)
        if wanted and store.remove(entry.key):
            removed[entry.key] = entry.size_bytes
            if name is not None:
                store.name(name, None)
    for word in chosen:
        if "path" in names.get(word, {}):
            store.name(word, None)  # the folder itself is the user's
    return removed


def _add(store: Store, name: str, path: str) -> Row:
    library = Library(store, rootless=host.look().rootless)
    try:
        image = library.path(path)
        kept = {"path": image.key.rsplit(":", 2)[0]} if os.sep in image.key else {"key": image.key}
        store.name(name, kept)
    finally:
        library.close()
    return next(row for row in rows(store) if name in row.names)


def _build(
    store: Store, what: str, name: str | None, mirror: str, suite: str, allow_weaker: bool
) -> list[Row]:
    if what == "debian":
        entry: Entry = debian.build(store, name=name or "debian", suite=suite, mirror=mirror)
        return [row for row in rows(store) if row.key == entry.key]
    if Path(what).is_file() and not what.endswith(".py"):
        spec: SandboxSpec | None = SandboxSpec(dockerfile=what)
    else:
        spec = make_environment(what, {}).sandbox
    if spec is None or not spec.needs_build:
        fail(f"{what}: its sandbox asks for nothing to be built")
    key = run_blocking(_prepared(spec, allow_weaker))
    if name is not None:
        store.name(name, {"key": key})
    return [row for row in rows(store) if row.key == key]


async def _prepared(spec: SandboxSpec, allow_weaker: bool) -> str:
    backend = NativeBackend(allow_weaker=allow_weaker)
    try:
        image = await backend.prepare(spec)
        return image.key if image is not None else ""
    finally:
        await backend.close()


def _show(found: Sequence[Row], as_json: bool) -> None:
    if as_json:
        print_json([asdict(row) for row in found])
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name or key", "kind", "size", "last use (UTC)", "made of"):
        table.add_column(title)
    for row in found:
        used = "now" if row.in_use else row.used.removesuffix("+00:00").replace("T", " ")
        shown = ", ".join(row.names) or row.key[:12]
        size = _size(row.size_bytes) if row.size_bytes else "–"
        table.add_row(escape(shown), row.kind, size, used, escape(row.source))
    out().print(table if found else "no images yet")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"
