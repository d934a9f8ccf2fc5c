"""Where submissions come from: each source looks at one task's `Aim` and yields what it can.

A source never asks the verifier. It says `right=False` only for what is wrong by construction, and
leaves out what happens to be the gold itself.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from quintain.audits.aims import may_be_right
from quintain.audits.exploits import CORPUS
from quintain.audits.packages import bohrin, gradecheck, missing
from quintain.audits.submissions import SYMMETRY, Aim, Script, Submission, as_script, say
from quintain.messages import assistant
from quintain.protocols import Environment
from quintain.record import derive_seed, digest

Source = Callable[[Environment, Aim, Sequence[Aim]], Iterator[Submission]]
"""From an environment, the aim of one task and those of the others to submissions."""


def gold(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """The oracle's own solution."""
    if aim.gold is not None:
        yield Submission("gold", "gold", aim.gold, True, "BGW-124", "the oracle's solution")


def non_solvers(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Nothing, noise, the question itself, a piece of the gold, another task's gold."""

    def wrong(name: str, text: str | Script, detail: str, weakness: str = "BGW-101") -> Submission:
        script = say(text) if isinstance(text, str) else text
        return Submission(name, name, script, False, weakness, detail)

    rng = random.Random(derive_seed(0, "audit", aim.task.id))
    gold_text = "" if aim.gold is None else aim.gold[-1].text
    yield wrong("empty", "", "says nothing")
    noise = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(200))
    # Where nothing is known of right answers, words may be one.
    known = aim.gold is not None or aim.form in ("function", "program")
    for name, text, detail in (
        ("noop", "I have finished the task.", "claims to be done"),
        ("random", noise, "random letters"),
    ):
        yield replace(wrong(name, text, detail), right=False if known else None)
    echo = aim.task.prompt[-1].text if aim.task.prompt else ""
    if echo.strip() != gold_text.strip():
        yield Submission("prompt echo", "prompt echo", say(echo), None, "BGW-115", "the question")
    if aim.gold is None:
        return
    half = gold_text[: len(gold_text) // 2]
    if half.strip() and aim.form in ("function", "program"):
        yield wrong("truncated", (*aim.gold[:-1], *say(half)), "the first half of the gold")
    mutated = _mutated(gold_text, rng) if aim.form == "answer" else ""
    if mutated:
        script = (*aim.gold[:-1], *say(mutated))
        yield wrong("mutated gold", script, "the gold with its last number changed", "BGW-123")
    for other in others:
        if other.gold is not None and _differs(aim, other):
            yield wrong("gold of another task", other.gold, f"solves {other.task.id}", "BGW-119")
            break


def _mutated(text: str, rng: random.Random) -> str:
    """The text with its last whole number changed; empty where it has none."""
    found = list(re.finditer(r"(?<![\d.,])\d+(?![\d.,]*\d)", text))
    if not found:
        return ""
    last = found[-1]
    changed = int(last[0][:300]) + rng.choice((1, 2, 3, 7, 10))
    return f"{text[: last.start()]}{changed}{text[last.end() :]}"


def _differs(aim: Aim, other: Aim) -> bool:
    """Whether the gold of another task is surely none of this one."""
    if aim.form != other.form or aim.task.answer == other.task.answer:
        return False
    if aim.form == "function":
        return aim.entry_point != other.entry_point
    return aim.form == "answer" and aim.task.answer is not None


def fakes(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """What the environment itself declares to be no solution."""
    declared = getattr(environment, "fakes", None)
    for number, script in enumerate(declared(aim.task) if declared is not None else ()):
        yield Submission(
            f"fake {number}", "declared fake", as_script(script), False, "BGW-119",
            "declared by the environment",
        )  # fmt: skip


def exploits(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """The corpus of exploits for the form of the task."""
    gold_text = "" if aim.gold is None else aim.gold[-1].text.strip()
    for exploit in CORPUS.get(aim.form, ()):
        if exploit.change is not None and not aim.known:
            continue
        source = exploit.beside(aim.known).replace("ENTRY", aim.entry_point or "ENTRY")
        if (exploit.change is not None and not source) or source.strip() == gold_text:
            continue
        if aim.form == "calls" and _may_be_right(aim, source):
            continue
        # A constant may be what some task wants: then its passing proves nothing.
        constant = exploit.kind == "trivial" and not aim.reference
        right = None if constant or _says_the_same(source, aim.known) else False
        yield Submission(
            exploit.name, exploit.kind, aim.submitted(source), right, exploit.weakness,
            f"beats a grader that is careless in this way: {exploit.naive}",
            costly=exploit.costly,
        )  # fmt: skip


def _says_the_same(source: str, known: str) -> bool:
    """Whether a text is what some task really wants: there may be nothing, or an empty list."""
    bare = re.sub(r"\\(boxed|text|mathrm)|[\s{}\[\]()$]", "", source).casefold()
    return bool(known) and bare == re.sub(r"[\s{}\[\]()$]", "", known).casefold()


def _may_be_right(aim: Aim, source: str) -> bool:
    """Whether changed calls are right after all: an accepted value, or written where calls are."""
    unmade = aim.written and '"calls": []' in source
    return unmade or may_be_right(aim.task.answer, source)


def hard_coded(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """A function that knows the examples of the task text and nothing else."""
    if aim.form != "function" or not aim.examples:
        return
    lines = [f"def {aim.entry_point}(*args):"]
    lines += [f"    if args == {tuple(args)!r}: return {value!r}" for args, value in aim.examples]
    lines.append("    raise ValueError('not among the examples')")
    yield Submission(
        "hard-coded examples", "hard-coded", aim.code("\n".join(lines)), False, "BGW-104",
        "answers what the task shows, and nothing else",
    )  # fmt: skip


def unusual(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Rewritings of the reference that keep its meaning: who fails one is too narrow."""
    if aim.form not in ("function", "program") or not aim.reference:
        return
    try:
        tree = ast.parse(aim.reference)
    except SyntaxError:
        return
    variants = {
        "reformatted": ast.unparse(tree),
        "commented": "# A comment.\n" + aim.reference + "\n# The end.\n",
        "renamed locals": ast.unparse(_RenamedLocals().visit(ast.parse(aim.reference))),
        "with a docstring": '"""A solution."""\n\n' + aim.reference,
        "with a helper": "def _helper(x):\n    return x\n\n\n" + aim.reference,
    }
    if aim.form == "function":
        variants["with prints"] = aim.reference + "\nprint('done')\n"
        variants["with a main guard"] = (
            aim.reference + "\n\nif __name__ == '__main__':\n    print('main')\n"
        )
    for name, source in variants.items():
        if source.strip() != aim.reference.strip():
            yield Submission(
                name, "right but unusual", aim.code(source), True, "BGW-120",
                "means the same as the reference",
            )  # fmt: skip


class _RenamedLocals(ast.NodeTransformer):
    """Gives the local variables of functions other names; parameters keep theirs."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Renames what the function assigns; functions with nested scopes stay as they are."""
        nested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        inner = [child for statement in node.body for child in ast.walk(statement)]
        if any(isinstance(child, (*nested, ast.Global, ast.Nonlocal)) for child in inner):
            return node
        arguments = {argument.arg for argument in ast.walk(node.args) if hasattr(argument, "arg")}
        assigned = {
            child.id
            for child in inner
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
        } - arguments
        names = {name: f"v{number}" for number, name in enumerate(sorted(assigned))}
        if set(names.values()) & (arguments | assigned):
            return node
        for child in inner:
            if isinstance(child, ast.Name) and child.id in names:
                child.id = names[child.id]
        return node


def invariance(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Golds changed in what carries no meaning: blanks around, a comment, a command too many."""
    if aim.gold is None:
        return
    last = aim.gold[-1]
    changed: dict[str, Script] = {}
    if aim.form in ("answer", "judge") and last.text:
        changed["line break after"] = (*aim.gold[:-1], *say(last.text + "\n"))
        changed["blanks before"] = (*aim.gold[:-1], *say("\n  " + last.text))
    elif aim.form == "terminal" and aim.shell is not None:
        changed["a command that does nothing"] = (aim.submitted("true")[0], *aim.gold)
    elif aim.form == "calls" and len(aim.gold) <= 2 and not aim.written:
        turned = [
            call.model_copy(update={"arguments": dict(reversed(call.arguments.items()))})
            for call in aim.gold[0].tool_calls
        ]
        changed["arguments in another order"] = (assistant("", *turned), *aim.gold[1:])
    elif aim.form == "sql":
        query = json.loads(aim.known)["query"].strip().rstrip(";")
        changed["with a comment"] = aim.submitted(f"/* people */ {query}\n-- the end")
        changed["with a semicolon"] = aim.submitted(f"\n{query} ;\n")
    for name, script in changed.items():
        if script != aim.gold:
            yield Submission(
                name, "right but unusual", script, True, "BGW-120", "means the same as the gold"
            )


def symmetry(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Pairs of answers, each once as the gold and once as the answer: equality goes both ways."""
    gold = aim.task.answer
    if aim.form != "answer" or not isinstance(gold, str | int) or isinstance(gold, bool):
        return
    text = str(gold).strip()
    if re.fullmatch(r"-?\d{1,18}", text):
        value = int(text)
        beside = [f"{value}.0", f"{value}.00", str(value + 1)]
    else:
        beside = [f" {text} ", text.upper(), text[:-1]]
    for number, other in enumerate(beside):
        if not other.strip() or other == text:
            continue
        turned = aim.task.model_copy(update={"answer": other})
        for way, said, task in (("there", other, None), ("back", text, turned)):
            yield Submission(
                f"pair {number} {way}", SYMMETRY, say(f"\\boxed{{{said}}}"), None, "BGW-123",
                f"{text!r} and {other!r}", task=task,
            )  # fmt: skip


def partial(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """The reference, wrong on about half of all inputs: a verdict on it that changes is a flip."""
    if aim.form != "function" or not aim.reference:
        return
    for salt in ("a", "b", "c"):
        source = (
            f"{aim.reference}\n\n_right = {aim.entry_point}\n\n\n"
            f"def {aim.entry_point}(*args):\n"
            "    import hashlib\n"
            f"    if hashlib.sha256(('{salt}' + repr(args)).encode()).digest()[0] % 2:\n"
            "        raise ValueError('wrong on purpose')\n"
            "    return _right(*args)\n"
        )
        yield Submission(
            f"half right {salt}", "half right", aim.code(source), None, "BGW-119",
            "fails on half of all inputs",
        )  # fmt: skip


def outputs(environment: Environment, aim: Aim, others: Sequence[Aim]) -> Iterator[Submission]:
    """Changed copies of a right output, for graders that are handed the output itself."""
    if aim.form != "output" or aim.gold is None:
        return
    tokens = aim.gold[-1].text.split()
    changed = {
        "reversed": tokens[::-1],
        "one more": [*tokens, "0"],
        "one less": tokens[:-1],
        "twice": [*tokens, *tokens],
        "unordered": sorted(tokens, key=lambda token: token[::-1], reverse=True),
        "nothing": [],
    }
    for name, found in changed.items():
        if found != tokens:
            yield Submission(
                f"output {name}", "changed output", say(" ".join(found)), False, "BGW-123",
                "not what a right program prints",
            )  # fmt: skip


SOURCES: dict[str, Source] = {
    "gold": gold,
    "non-solvers": non_solvers,
    "fakes": fakes,
    "exploits": exploits,
    "hard-coded": hard_coded,
    "unusual": unusual,
    "invariance": invariance,
    "partial": partial,
    "symmetry": symmetry,
    "outputs": outputs,
    "bohrin": bohrin,
    "gradecheck": gradecheck,
}
"""In the order in which they are played."""


def default_sources() -> tuple[str, ...]:
    """All that can be had here: other packages' attacks need the extra `audit`."""
    return tuple(name for name in SOURCES if name not in missing())


def submissions_of(
    environment: Environment, aim: Aim, others: Sequence[Aim], sources: Sequence[str]
) -> list[Submission]:
    """All submissions to one task, each text once."""
    out: dict[str, Submission] = {}
    for name in sources:
        for submission in SOURCES[name](environment, aim, others):
            messages = [message.model_dump(mode="json") for message in submission.script]
            said = digest(messages, submission.name if submission.kind == SYMMETRY else "")
            known = out.get(said)
            if known is None or (known.right is None and submission.right is not None):
                out[said] = submission
    return list(out.values())
