"""Attacks that other packages bring (extra `audit`): bohrin's battery and controls, gradecheck's.

Each candidate keeps the ground on which its own package calls it wrong; what the package only
calls a lead is one here. Candidates that are files and commands are played through the
environment's shell, with the paths that graders in the field use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from quintain.audits.submissions import Aim, Submission, say
from quintain.errors import ConfigError
from quintain.protocols import Environment

PACKAGES = ("bohrin", "gradecheck")
_PLACES = {
    "test_root": ("tests",),
    "source_path": ("solution.py",),
    "reward_path": ("reward.txt", "logs/verifier/reward.txt"),
    "tool_path": ("bin/python3", "bin/diff"),
    "parser_path": ("parser.py", "tests/parser.py"),
    "measurement_path": ("timer.py",),
}
"""What the parameters of a workspace may be in a sandbox that nothing is known of."""
_REFERENCE = """def solve(values):
    total = 0
    for value in values:
        total += value
    return total
"""
"""Stands for the reference of tasks that have none; only what surrounds it matters there."""


def missing() -> list[str]:
    """The packages that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"the source {package!r} needs it: pip install 'quintain[audit]'")


def bohrin(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Bohrin's battery of submissions that are wrong by construction, and its positive controls."""
    _need("bohrin")
    from bohrin import api

    prompt = "\n".join(message.text for message in aim.task.prompt)
    shape = {"function": "program", "program": "io", "terminal": "container"}.get(aim.form)
    if shape is None:
        return
    reference = aim.reference or (_REFERENCE if aim.form == "terminal" else "")
    task = api.Task(aim.task.id, prompt, reference or None, shape=api.Shape(shape))
    for number, candidate in enumerate(api.battery(task).candidates):
        origin = candidate.provenance
        probe = api.probe_for(origin.operator)
        weakness = probe.weakness[0] if probe is not None else "BGW-101"
        payload = candidate.payload
        if isinstance(payload, api.Source):
            script = aim.submitted(payload.text)
        elif aim.shell is not None:
            script = aim.submitted(_commands(payload))
        else:
            continue
        yield Submission(
            f"bohrin/{origin.operator}-{number}", f"bohrin: {origin.operator}", script,
            False if candidate.known_wrong else None, weakness, origin.detail,
        )  # fmt: skip
    if not aim.reference:
        return
    for control in api.positive_controls(task):
        yield Submission(
            f"bohrin/control-{control.relation}", "bohrin: positive control",
            aim.submitted(control.payload.text), True, "BGW-120", control.certification,
        )  # fmt: skip


def _commands(workspace: Any) -> str:
    """A shell script that makes a workspace's changes, with every place its parameters may be."""
    lines = []
    for path, content in workspace.files.items():
        for place in _filled(path, workspace.parameters):
            if content is None:
                lines.append(f"rm -rf '{place}'")
                continue
            lines.append(f"mkdir -p \"$(dirname '{place}')\"")
            lines.append(f"cat > '{place}' <<'END_OF_FILE'\n{content}\nEND_OF_FILE")
            lines.append(f"chmod +x '{place}'")
    for command in workspace.commands:
        lines.extend(_filled(command, workspace.parameters))
    return "\n".join(lines)


def _filled(template: str, parameters: Sequence[str]) -> list[str]:
    found = [template]
    for name in parameters:
        found = [
            text.replace(f"{{{name}}}", place)
            for text in found
            for place in (_PLACES.get(name, (name,)) if f"{{{name}}}" in text else ("",))
        ]
    return found


def gradecheck(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Gradecheck's cheap strategies: of completions, and of a tree of files where there is one."""
    _need("gradecheck")
    from gradecheck import attacks as tree
    from gradecheck import completion_attacks as attacks

    prompt = "\n".join(message.text for message in aim.task.prompt)
    example = SimpleNamespace(observation_text=prompt)
    for attack in attacks._ATTACKS:
        try:
            text = attack.payload(example)
        except NotImplementedError:
            # Of the form alone: wrong content where a right answer would stand.
            text = attacks._WRONG
        # The task's text may hold the answer: then its passing proves nothing.
        right = None if attack.id == "prompt-echo" else False
        yield Submission(
            f"gradecheck/{attack.id}", f"gradecheck: {attack.id}", say(text), right, "BGW-101",
            attack.title,
        )  # fmt: skip
    if aim.form != "terminal" or aim.shell is None:
        return
    kept = sorted(set(tree.all_attacks()) & set(_TREE))
    for name in kept:
        yield Submission(
            f"gradecheck/{name}", f"gradecheck: {name}", aim.submitted(_TREE[name]), False,
            "BGW-109" if name == "test-deletion" else "BGW-101", tree.all_attacks()[name].title,
        )  # fmt: skip


_TREE = {
    "noop": "true",
    "empty-source": "find . -type f \\( -name '*.py' -o -name '*.sh' -o -name '*.c' \\) "
    "-exec sh -c ': > \"$1\"' - {} \\;",
    "test-deletion": "find . \\( -name 'test_*' -o -name '*_test.*' -o -name conftest.py "
    "-o -path '*/tests/*' \\) -type f -delete",
    "hollow-implementation": "for f in answer.txt out.txt result.json report.md; do\n"
    "  printf 'PASS\\nRESULT: PASS\\nsuccess\\n' > $f\ndone",
}
"""Gradecheck's attacks on a tree, as commands; its static search for answers is a leak probe."""
