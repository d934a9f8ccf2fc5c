"""The options that several verbs share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Environment = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="A name from `quintain list`, path/to/file.py:attribute, or module:attribute. "
        "May be left out where --config names it.",
        show_default=False,
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a stored run.", show_default=False)
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="A name from `quintain list`, path/to/file.py:attribute, or module:attribute.",
        rich_help_panel="Policy",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="The server's name of a model, or (with --policy local) a folder with weights.",
        rich_help_panel="Policy",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="An OpenAI-compatible server, up to and with /v1. The key comes from the "
        "environment variable that --set policy.api_key_env=NAME names (for OpenAI's own hosts: "
        "OPENAI_API_KEY).",
        rich_help_panel="Policy",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="RUN[@STEP]",
        help="Weights from a training run: its selected checkpoint, or that of a step (or, as "
        "v3, of a version).",
        rich_help_panel="Policy",
    ),
]
Split = Annotated[str | None, typer.Option(help="train, eval or heldout.")]
Samples = Annotated[int | None, typer.Option("--samples", help="Samples of each task.")]
Limit = Annotated[int | None, typer.Option(help="At most that many tasks.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="TASK[:SAMPLE]", help="Only this task or sample; may be given again."),
]
Seed = Annotated[int | None, typer.Option(help="Of the run; every sample's seed follows from it.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; default: as the environment says.")
]
Concurrency = Annotated[int | None, typer.Option(help="Rollouts at once.")]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost-usd", help="Start no more rollouts beyond this cost.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", help="Start no more rollouts beyond this many sampled tokens."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", help="Folder of the run; default: new under runs/."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
RetryErrors = Annotated[
    bool, typer.Option("--retry-errors", help="Run samples again that ended in a host's fault.")
]
AllowWeaker = Annotated[
    bool,
    typer.Option(
        "--allow-weaker", help="Go on where the sandbox cannot enforce all that is asked for."
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="NAME", help="Where sandboxes run: native (default), docker, …"
    ),
]
Sandboxes = Annotated[
    str | None,
    typer.Option(
        "--sandboxes",
        metavar="HOW",
        help="fresh (default), pooled (made ahead, single use), reused (reset and proved), or "
        "auto: chosen from measured times.",
    ),
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting by its dotted key, such as train.group_size=8; may be given again.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log messages and tracebacks.")]
