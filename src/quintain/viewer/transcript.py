"""One trajectory as readable text: who said what, what the tools answered, and the verdict.

The same pieces are printed plainly or in colour. What a model or a tool wrote is shown as it is,
but never obeyed: control characters (terminal escapes among them) are made visible, markup is not
read.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from quintain import registry
from quintain.messages import FilePart, ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall
from quintain.record import Json
from quintain.store import Store
from quintain.trajectory import Step, Trajectory, TrajectoryKey
from quintain.verdict import Check, Verdict

MAX_CHARS = 6_000
"""Of one part; the middle of a longer one is left out, and how much."""
MAX_HOSTS = 12
"""Of those that a sandbox asked for."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
del _CONTROL[9], _CONTROL[10]
# Characters that reorder or hide text on a terminal.
_CONTROL |= {
    code: f"\\u{code:04x}" for code in (*range(0x200B, 0x2010), *range(0x202A, 0x202F), 0xFEFF)
}
_CONTROL |= {code: f"\\u{code:04x}" for code in range(0x2066, 0x206A)}


class Piece(NamedTuple):
    """A line or more of a transcript, and what it is."""

    kind: str
    """"title", "facts", "role", "text", "reasoning", "call", "result", "error", "pass", "fail",
    "undecided" or "note"."""
    text: str


STYLES = {
    "title": "bold",
    "facts": "dim",
    "role": "bold cyan",
    "text": "",
    "reasoning": "italic dim",
    "call": "yellow",
    "result": "",
    "error": "red",
    "pass": "green",
    "fail": "red",
    "undecided": "yellow",
    "note": "dim",
}


def visible(text: str) -> str:
    """The text with control characters made visible; line ends and tabs stay."""
    return text.replace("\r\n", "\n").translate(_CONTROL)


def shortened(text: str, limit: int | None = MAX_CHARS) -> str:
    """The text, its middle left out when it is longer than `limit`; None: all of it."""
    if limit is None or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def reproduce(key: TrajectoryKey, config: Mapping[str, Json]) -> str:
    """The command that plays a stored sample again, with the same seeds.

    Args:
        key: of the sample.
        config: of its run. `command` (environment and options, as they were typed) is used where
            the run was started by a command, else the names of environment and policy; then
            `checkpoint` (RUN@STEP), `sampling` where it was not the environment's
            (`sampling_given`), and `seed`; see `origin`. Where the weights that sampled it were
            not kept (`weights_gone`) the line says so.
    """
    command = config.get("command") or {}
    seed = config.get("seed", (config.get("settings") or {}).get("seed", 0))
    trained = config.get("checkpoint") or config.get("weights_gone")
    if not (command or trained or key.environment in registry.environments.names()):
        return _python_call(key, config, seed)
    options = command.get("options") or ["--policy", str(config.get("policy") or "POLICY")]
    words = ["quintain", "run", str(command.get("environment") or key.environment), *options]
    if config.get("checkpoint") and "--checkpoint" not in options:
        words += ["--checkpoint", str(config["checkpoint"])]
    if config.get("sampling_given") and "--temperature" not in options:
        words += ["--temperature", f"{config['sampling']['temperature']:g}"]
    words += ["--only", f"{key.task_id}:{key.sample_index}"]
    words += ["--seed", str(seed), "--purpose", key.purpose]
    line = " ".join(shlex.quote(str(word)) for word in words)
    gone = config.get("weights_gone")
    if not gone:
        return line
    named = ", ".join(map(str, gone))
    return f"{line}  # sampled by version {named}, whose weights were not kept"


def _python_call(key: TrajectoryKey, config: Mapping[str, Json], seed: Json) -> str:
    """The call that plays a sample of an environment that only the program has a name for."""
    sampling = ""
    if config.get("sampling_given"):
        sampling = f", sampling=q.Sampling(temperature={config['sampling']['temperature']:g})"
    return (
        f"q.rollout(environment, policy, {key.task_id!r}, sample_index={key.sample_index}, "
        f"purpose={key.purpose!r}, seed={seed}{sampling})"
    )


def origin(
    store: Store, purpose: str, environment: str, versions: Sequence[int] = ()
) -> dict[str, Json]:
    """What `reproduce` needs to know of one purpose of a run: how it was begun, with what weights.

    Args:
        store: of the run, open in whatever way.
        purpose: an eval's, which names its policy version, or "train".
        environment: the environment's name.
        versions: that sampled the trajectory, where the purpose names none.
    """
    out: dict[str, Json] = dict(store.meta("config") or {})
    for _, _, data in store.event_rows("eval.begun"):
        if (data["purpose"], data["environment"]) == (purpose, environment):
            out |= data
    _, _, named = purpose.rpartition("@v")
    wanted = [int(named)] if named.isdecimal() else list(versions)
    for row in store.checkpoints():
        if wanted == [row.version]:
            out["checkpoint"] = f"{store.folder}@{row.step}"
            break
    else:
        if store.meta("kind") == "train" and wanted not in ([], [0]):
            out["weights_gone"] = wanted
    return out


def part_pieces(part: Part, limit: int | None = MAX_CHARS) -> Iterator[Piece]:
    """One part of a message."""
    if isinstance(part, TextPart):
        yield Piece("text", shortened(visible(part.text), limit))
    elif isinstance(part, ReasoningPart):
        text = shortened(visible(part.text), limit)
        yield Piece("reasoning", f"(thinks) {text}" if text else "(thinks, not shown)")
    elif isinstance(part, ImagePart | FilePart):
        yield Piece("note", _placeholder(part))
    elif isinstance(part, ToolCall):
        arguments = part.raw or json.dumps(part.arguments, ensure_ascii=False)
        yield Piece("call", f"→ {visible(part.name)} {shortened(visible(arguments), limit)}")
        if part.error:
            yield Piece("error", f"  malformed: {visible(part.error)}")
    else:
        mark = "← error of" if part.is_error else "←"
        yield Piece("error" if part.is_error else "result", f"{mark} {visible(part.name)}:")
        for inner in part.content:
            for piece in part_pieces(inner, limit):
                yield Piece("error" if part.is_error else "result", piece.text)


def _placeholder(part: ImagePart | FilePart) -> str:
    name = "image" if isinstance(part, ImagePart) else f"file {visible(part.name)}"
    where = f"{len(part.data):,} bytes" if part.data is not None else visible(part.url or "")
    return f"[{name}: {part.media_type}, {where[:200]}]"


def message_pieces(
    message: Message, note: str = "", limit: int | None = MAX_CHARS
) -> Iterator[Piece]:
    """One message: its role, then its parts."""
    yield Piece("role", f"── {message.role}{' · ' + note if note else ''} ──")
    for part in message.content:
        for kind, text in part_pieces(part, limit):
            yield Piece(kind, _indented(text))


def _indented(text: str) -> str:
    """Indented, so that nothing a message holds can pass for a heading or a verdict."""
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _step_note(number: int, step: Step) -> str:
    action = step.action
    facts = [f"step {number}", f"{step.policy_s:.2f} s"]
    if action.usage.completion_tokens:
        facts.append(f"{action.usage.completion_tokens} tokens")
    if action.finish not in ("stop", "tool_calls"):
        facts.append(action.finish)
    return ", ".join(facts)


def _facts(trajectory: Trajectory) -> str:
    timing, usage = trajectory.timing, trajectory.usage
    facts = [
        f"stopped: {trajectory.stop}",
        f"{len(trajectory.steps)} steps",
        f"{timing.total_s:.2f} s (setup {timing.setup_s:.2f}, policy {timing.policy_s:.2f}, "
        f"environment {timing.env_s:.2f}, verifier {timing.verify_s:.2f})",
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens",
    ]
    if usage.cost_usd:
        facts.append(f"${usage.cost_usd:.4f}")
    if trajectory.versions:
        facts.append("policy version " + ", ".join(map(str, trajectory.versions)))
    return " · ".join(facts)


def _check_piece(check: Check) -> Piece:
    kind = {True: "pass", False: "fail", None: "undecided"}[check.passed]
    mark = {True: "✓", False: "✗", None: "?"}[check.passed]
    detail = f": {_indented(visible(check.detail)).strip()}" if check.detail else ""
    return Piece(kind, f"{mark} {visible(check.name)}{detail}")


def verdict_pieces(verdict: Verdict) -> Iterator[Piece]:
    """What the verifier said."""
    kind = "undecided" if verdict.reward is None else "pass" if verdict.passed else "fail"
    reward = "no reward" if verdict.reward is None else f"reward {verdict.reward:g}"
    score = "" if verdict.score is None else f", score {verdict.score:g}"
    yield Piece(
        kind,
        f"{verdict.outcome}: {reward}{score} · {verdict.verifier or 'verifier'} ({verdict.kind}, "
        f"{verdict.wall_s:.2f} s)",
    )
    yield from map(_check_piece, verdict.checks)
    if verdict.explanation:
        yield Piece("text", _indented(shortened(visible(verdict.explanation))))
    if verdict.metrics:
        named = ", ".join(f"{name} {value:g}" for name, value in verdict.metrics.items())
        yield Piece("note", visible(named))
    if verdict.flags:
        yield Piece("fail", f"flagged: {visible(', '.join(verdict.flags))}")


def pieces(
    trajectory: Trajectory, *, reproduce: str = "", limit: int | None = MAX_CHARS
) -> Iterator[Piece]:
    """The whole trajectory, top to bottom.

    Args:
        trajectory: judged or not.
        reproduce: the command that plays it again, for the last line.
        limit: characters of one part; None: all.
    """
    t = trajectory
    outcome = str(t.outcome) if t.outcome is not None else "not judged"
    yield Piece(
        "title",
        f"{visible(t.task_id)} · sample {t.sample_index} · {outcome} · {visible(t.environment)} · "
        f"{visible(t.policy)} · {visible(t.purpose)}"
        + (f" · attempt {t.attempt}" if t.attempt else ""),
    )
    yield Piece("facts", _facts(t))
    for message in t.opening.messages:
        yield from message_pieces(message, limit=limit)
    for number, step in enumerate(t.steps, start=1):
        yield from message_pieces(step.action.message, _step_note(number, step), limit)
        for message in step.observation.messages:
            yield from message_pieces(message, f"{step.env_s:.2f} s", limit)
    yield Piece("role", "── verdict ──")
    if t.verdict is not None:
        yield from verdict_pieces(t.verdict)
    else:
        yield Piece("note", "none")
    if t.error is not None:
        message_text = shortened(visible(t.error.message), limit)
        yield Piece("error", f"fault in {t.error.stage}: {t.error.type}: {message_text}")
    if t.events:
        counted = Counter(event.kind for event in t.events)
        named = ", ".join(f"{kind} × {n}" if n > 1 else kind for kind, n in counted.items())
        yield Piece("note", f"events: {visible(named)}")
        for line in _network(t):
            yield Piece("note", line)
    if t.artifacts:
        yield Piece("note", f"artifacts: {visible(', '.join(t.artifacts))}")
    if reproduce:
        yield Piece("note", f"reproduce: {visible(reproduce)}")


def _network(trajectory: Trajectory) -> Iterator[str]:
    """What the sandbox asked of the network, by host and decision."""
    asked: dict[tuple[str, str], list[int]] = {}
    for event in trajectory.events:
        if event.kind == "network.request" and "decision" in event.data:
            where = f"{event.data.get('host', '')}:{event.data.get('port', '')}"
            why = ": ".join(filter(None, map(event.data.get, ("decision", "reason"))))
            row = asked.setdefault((where, why), [0, 0, 0])
            for at, amount in enumerate((1, event.data.get("up", 0), event.data.get("down", 0))):
                row[at] += amount
    for (where, why), (count, up, down) in list(asked.items())[:MAX_HOSTS]:
        times = f" × {count}" if count > 1 else ""
        yield f"  {visible(where)} {visible(why)}{times}, {up:,} bytes out, {down:,} in"
    if len(asked) > MAX_HOSTS:
        yield f"  and {len(asked) - MAX_HOSTS} more"


def transcript(
    trajectory: Trajectory, *, reproduce: str = "", limit: int | None = MAX_CHARS
) -> str:
    """The trajectory as plain text; see `pieces`."""
    return "\n".join(piece.text for piece in pieces(trajectory, reproduce=reproduce, limit=limit))


def rich_transcript(
    trajectory: Trajectory, *, reproduce: str = "", limit: int | None = MAX_CHARS
) -> Text:
    """The trajectory in colour, for a rich console; see `pieces`."""
    out = Text()
    for piece in pieces(trajectory, reproduce=reproduce, limit=limit):
        out.append(piece.text + "\n", style=STYLES[piece.kind])
    return out


def print_transcript(
    trajectory: Trajectory,
    *,
    reproduce: str = "",
    file: TextIO | None = None,
    limit: int | None = MAX_CHARS,
) -> None:
    """Prints the trajectory, in colour where the output is a terminal or a notebook."""
    console = Console(file=file, soft_wrap=True, highlight=False)
    console.print(rich_transcript(trajectory, reproduce=reproduce, limit=limit), end="")
