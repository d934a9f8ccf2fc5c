"""Templates of terminal tasks: what is asked, what lies there, what must hold, who solves it.

Each draws a problem from a random generator: an instruction, files, the answer of the `terminal`
verifier, the steps of one right solution with what the tools say to them, and fakes that look like
solutions and are none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

from quintain.envs.terminal_tools import NO_OUTPUT, created, replaced

WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jasper",
    "kelp", "larch", "maple", "north", "otter", "pearl", "quartz", "raven", "slate", "tern",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One tool call, and what the tool says to it."""

    tool: str
    arguments: dict[str, Any]
    told: str = NO_OUTPUT


@dataclass(frozen=True)
class Problem:
    """One drawn problem."""

    name: str
    instruction: str
    files: dict[str, str]
    answer: dict[str, Any]
    steps: tuple[Step, ...]
    fakes: tuple[tuple[Step, ...], ...]
    hidden: dict[str, str] = field(default_factory=dict)


def shell(command: str) -> Step:
    """A call of the shell that prints nothing."""
    return Step("shell", {"command": command})


def edit(path: str, content: str, old: str, new: str) -> Step:
    """An exact replacement in a file of that content."""
    told = replaced(path, content, old, new)[1]
    return Step("edit", {"path": path, "old": old, "new": new}, told)


def create(path: str, content: str) -> Step:
    """A new file."""
    return Step("edit", {"path": path, "old": "", "new": content}, created(path, content))


def count_lines(rng: random.Random) -> Problem:
    """How many requests had that status?"""
    statuses = rng.sample(["200", "301", "403", "404", "500", "503"], 4)
    rows = [
        f"{rng.choice(WORDS)} GET /{rng.choice(WORDS)}/{rng.randint(100, 999)} {status} "
        f"{rng.randint(100, 999)}"
        for status in rng.choices(statuses, k=rng.randint(30, 60))
    ]
    wanted = rng.choice(statuses)
    value = sum(row.split()[3] == wanted for row in rows)
    log = f"{rng.choice(WORDS)}-{rng.randint(100, 999)}.log"
    count = f"awk '$4 == {wanted}' {log} | wc -l"
    return Problem(
        "count-lines",
        f"Each line of {log} holds: client, method, path, status, bytes. Write to answer.txt "
        f"how many lines have the status {wanted}: the number alone.",
        {log: "".join(f"{row}\n" for row in rows)},
        {"files": {"answer.txt": str(value)}},
        (shell(f"{count} > answer.txt"),),
        (
            (shell(f"echo {value + 1} > answer.txt"),),
            (shell(f"seq 0 {len(rows)} > answer.txt"),),
            # Right, but after the end: no process outlives the episode.
            (shell(f"(sleep 3; echo {value} > answer.txt) &"),),
            (shell(f"ln -s /dev/stdin answer.txt; echo {value} | cat > /dev/null"),),
        ),
    )


def find_file(rng: random.Random) -> Problem:
    """Which file holds that word?"""
    folders = rng.sample(WORDS, 3)
    paths = sorted({f"notes/{rng.choice(folders)}/{rng.choice(WORDS)}.txt" for _ in range(12)})
    secret = f"{rng.choice(WORDS)}-{rng.randint(1000, 9999)}"
    chosen = rng.choice(paths)
    files = {}
    for path in paths:
        lines = [" ".join(rng.choices(WORDS, k=6)) for _ in range(rng.randint(3, 8))]
        if path == chosen:
            lines.insert(rng.randrange(len(lines)), f"the code is {secret} today")
        files[path] = "".join(f"{line}\n" for line in lines)
    at = files[chosen].splitlines().index(f"the code is {secret} today") + 1
    found = f"{chosen}:{at}:the code is {secret} today"
    other = next(path for path in paths if path != chosen)
    return Problem(
        "find-file",
        f"One file under notes/ holds the code {secret}. Write its path, as in notes/a/b.txt, to "
        "found.txt.",
        files,
        {"files": {"found.txt": chosen}},
        (
            Step("search", {"pattern": secret, "path": "notes"}, found),
            shell(f"echo {chosen} > found.txt"),
        ),
        (
            (shell(f"echo {other} > found.txt"),),
            (shell("find notes -type f > found.txt"),),
            (shell(f"echo {secret} > found.txt"),),
        ),
    )


def change_setting(rng: random.Random) -> Problem:
    """One key in one section; the same key stands in others."""
    sections, key = rng.sample(WORDS, 3), rng.choice(["port", "workers", "timeout", "retries"])
    chosen = rng.choice(sections)
    before, after = rng.sample(range(10, 9999), 2)
    parts = {}
    for section in sections:
        other = rng.randint(10, 9998)
        other += other >= after  # so that changing every section is always wrong
        value = before if section == chosen or rng.random() < 0.5 else other
        extra = "".join(f"{word} = {rng.randint(0, 99)}\n" for word in rng.sample(WORDS, 2))
        parts[section] = f"[{section}]\n{key} = {value}\n{extra}\n"
    text = "".join(parts.values())
    old = f"[{chosen}]\n{key} = {before}\n"
    new = f"[{chosen}]\n{key} = {after}\n"
    return Problem(
        "change-setting",
        f"In app.ini set {key} in the section [{chosen}] to {after}. Change nothing else.",
        {"app.ini": text},
        {"files": {"app.ini": text.replace(old, new)}},
        (edit("app.ini", text, old, new),),
        (
            (shell(f"sed -i 's/^{key} = .*/{key} = {after}/' app.ini"),),
            (shell(f"echo '{key} = {after}' >> app.ini"),),
            (shell(f"printf '[{chosen}]\\n{key} = {after}\\n' > app.ini"),),
        ),
    )


PROGRAMS: tuple[tuple[str, str, str, str, Callable[[list[int]], int]], ...] = (
    ("the sum of the even ones", "total = 0\nfor n in numbers:\n    if n % 2 == 0:\n"
     "        total += n\nprint(total)\n", "n % 2 == 0", "n % 2 == 1",
     lambda ns: sum(n for n in ns if n % 2 == 0)),
    ("the largest minus the smallest", "low, high = numbers[0], numbers[0]\nfor n in numbers:\n"
     "    low = min(low, n)\n    high = max(high, n)\nprint(high - low)\n", "max(high, n)",
     "min(high, n)", lambda ns: max(ns) - min(ns)),
    ("how many are larger than the one before", "count = 0\nfor i in range(1, len(numbers)):\n"
     "    if numbers[i] > numbers[i - 1]:\n        count += 1\nprint(count)\n",
     "range(1, len(numbers))", "range(1, len(numbers) - 1)",
     lambda ns: sum(b > a for a, b in pairwise(ns))),
    ("the sum of the squares", "total = 0\nfor n in numbers:\n    total += n * n\nprint(total)\n",
     "n * n", "n * 2", lambda ns: sum(n * n for n in ns)),
    ("how many different ones there are", "seen = []\nfor n in numbers:\n    if n not in seen:\n"
     "        seen.append(n)\nprint(len(seen))\n", "if n not in seen", "if n in seen",
     lambda ns: len(set(ns))),
)  # fmt: skip


def _cases(rng: random.Random, function: Callable[[list[int]], int]) -> list[dict[str, str]]:
    """Inputs and what must be printed; different ones, so that no constant passes."""
    cases: dict[str, dict[str, str]] = {}
    while len(cases) < 5 or len({case["stdout"] for case in cases.values()}) < 3:
        numbers = [rng.randint(-20, 60) for _ in range(rng.randint(4, 9))]
        # The last one counts, for whoever stops too early.
        numbers += [max(numbers) + rng.randint(1, 5)]
        text = " ".join(map(str, numbers))
        cases[text] = {"stdin": f"{text}\n", "stdout": str(function(numbers))}
    return list(cases.values())


def fix_program(rng: random.Random) -> Problem:
    """A program with one slip; judged by what it prints for inputs that nobody saw."""
    what, body, right, wrong, function = rng.choice(PROGRAMS)
    name = f"{rng.choice(WORDS)}.py"
    source = f"numbers = [int(word) for word in input().split()]\n{body}"
    broken = source.replace(right, wrong)
    shown, *cases = _cases(rng, function)
    lines = [line for line in broken.splitlines() if wrong in line]
    return Problem(
        "fix-program",
        f"{name} reads whole numbers from one line and shall print {what}, but it is wrong. For "
        f"the input {shown['stdin'].strip()} it must print {shown['stdout']}. Repair it.",
        {name: broken},
        {"runs": [{"command": f"python3 {name}", **case} for case in cases]},
        (edit(name, broken, lines[0], lines[0].replace(wrong, right)),),
        (
            (shell(f"echo 'print({shown['stdout']})' > {name}"),),
            (shell(f"echo 'raise SystemExit(0)' > {name}"),),
            (shell(f"printf '#!/bin/sh\\necho {shown['stdout']}\\n' > python3; chmod +x python3"),),
        ),
    )


def write_script(rng: random.Random) -> Problem:
    """A new program from its description."""
    key, step = rng.choice(["shortest", "longest"]), rng.randint(2, 9)
    name = f"{rng.choice(WORDS)}_{rng.choice(WORDS)}.py"
    pick = "min" if key == "shortest" else "max"

    def answer(words: list[str]) -> str:
        best = (min if key == "shortest" else max)(words, key=len)
        return f"{best.upper()} {len(words) * step}"

    cases = []
    for _ in range(5):
        words = rng.sample(WORDS, rng.randint(3, 7))
        cases.append({"stdin": " ".join(words) + "\n", "stdout": answer(words)})
    shown, *hidden = cases
    program = (
        f"words = input().split()\nprint({pick}(words, key=len).upper(), len(words) * {step})\n"
    )
    return Problem(
        "write-script",
        f"Write {name}: it reads words from one line and prints the {key} of them (the first, if "
        f"there are several) in capitals, a space, and {step} times the number of words. For the "
        f"input {shown['stdin'].strip()} it prints {shown['stdout']}.",
        {},
        {"runs": [{"command": f"python3 {name}", **case} for case in hidden]},
        (create(name, program),),
        (
            (create(name, f"print({shown['stdout']!r})\n"),),
            (create(name, program.replace(f"* {step}", f"* {step + 1}")),),
            (create(f"{name}.txt", program),),
        ),
    )


CHECK = """\
find "$1" -type f | sort > "$CHECK/found"
cmp -s "$CHECK/found" "$CHECK/expected" || { echo 'other files than expected'; exit 1; }
while read -r sum path; do
  echo "$sum  $path" | sha256sum -c --status || { echo "$path has changed"; exit 1; }
done < "$CHECK/sums"
"""


def tidy_up(rng: random.Random) -> Problem:
    """Remove by ending, and touch nothing else; a check command looks."""
    top = f"{rng.choice(WORDS)}-{rng.randint(100, 999)}"
    ending = rng.choice(["tmp", "bak", "old", "log"])
    kept: dict[str, str] = {}
    gone: dict[str, str] = {}
    for number in range(rng.randint(8, 14)):
        # One to remove lies in a folder, and one to keep has nearly that ending.
        folder = "/".join([top, *rng.sample(WORDS, rng.randint(number == 0, 2))])
        name = f"{rng.choice(WORDS)}{number}"
        if number % 3 == 0:
            gone[f"{folder}/{name}.{ending}"] = f"{number}\n"
        else:
            near = [f".{ending}x", f"_{ending}", ".txt"]
            kept[f"{folder}/{name}{rng.choice(near[:2] if number == 1 else near)}"] = "keep\n"
    paths = sorted(kept)
    sums = "".join(f"{sha256(kept[path].encode()).hexdigest()} {path}\n" for path in paths)
    hidden = {
        "check.sh": CHECK,
        "expected": "".join(f"{path}\n" for path in sorted(paths, key=str.encode)),
        "sums": sums,
    }
    return Problem(
        "tidy-up",
        f"Remove every file under {top}/ whose name ends in .{ending}, in all folders. Keep all "
        "other files as they are.",
        {**kept, **gone},
        {"check": f'LC_ALL=C sh "$CHECK/check.sh" {top}'},
        (shell(f"find {top} -type f -name '*.{ending}' -delete"),),
        (
            (shell(f"rm -rf {top}"),),
            (shell(f"find {top} -name '*{ending}*' -type f -delete"),),
            (shell(f"rm -f {top}/*.{ending}; printf 'exit 0\\n' > check.sh; export CHECK=/work"),),
            (shell("mkdir -p ~/bin; printf '#!/bin/sh\\nexit 0\\n' > ~/bin/cmp; "
                   "chmod +x ~/bin/cmp; export PATH=~/bin:$PATH; echo 'exit 0' > ~/.profile"),),
        ),
        hidden,
    )  # fmt: skip


TEMPLATES: Sequence[Callable[[random.Random], Problem]] = (
    count_lines, find_file, change_setting, fix_program, write_script, tidy_up,
)  # fmt: skip


def draw_problem(rng: random.Random) -> Problem:
    """A problem of any template."""
    return rng.choice(TEMPLATES)(rng)
