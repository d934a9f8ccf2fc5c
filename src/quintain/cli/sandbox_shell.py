"""A plain shell over a sandbox's `exec`: one command a line; folder and variables are kept.

No terminal is attached: programs that draw on one (editors, pagers) do not work.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

from rich.text import Text

from quintain.cli.console import out
from quintain.envs.tools import describe_exec
from quintain.protocols import Sandbox
from quintain.viewer.transcript import visible

_STATE = "/tmp/.quintain-shell"
"""Where the sandbox keeps the shell's folder and variables between two commands."""


async def run_command_line(sandbox: Sandbox, line: str, *, keep: bool = False) -> Text:
    """Runs a line in the sandbox's shell and returns what it printed.

    Args:
        sandbox: open.
        line: what `sh -c` runs.
        keep: begin where the last kept line ended: its folder and exported variables.
    """
    if keep:
        line = (
            f"[ -f {_STATE} ] && . {_STATE}\n"
            f"eval {shlex.quote(line)}\n"
            f'status=$?; {{ export -p; printf "cd %s\\n" "$PWD"; }} > {_STATE}; exit $status'
        )
    result = await sandbox.exec(["/bin/sh", "-c", line])
    return Text(visible(describe_exec(result)))


async def shell(sandbox: Sandbox, read_line: Callable[[], Awaitable[str | None]]) -> None:
    """Runs lines in the sandbox until `exit` or the end of the input."""
    console = out()
    console.print("the sandbox as it was left; one command a line, `exit` ends")
    while True:
        console.print("[bold green]sandbox $[/] ", end="")
        line = await read_line()
        if line is None or line.strip() in ("exit", "quit"):
            return
        if line.strip():
            console.print(await run_command_line(sandbox, line, keep=True))
