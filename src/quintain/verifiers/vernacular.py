"""Reads Coq text as far as a first look needs: sentences, without comments, and what they command.

The look is an allow-list: a sentence begins with a tactic, or with a command that a proof needs. It
keeps out what would load files and plug-ins, write files, assume things, or switch the kernel's
checks off. Soundness does not rest on it (`verifiers.proof` checks the result in clean rooms).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STATES = """
Theorem Lemma Fact Remark Corollary Proposition Property Definition Example Fixpoint CoFixpoint
Function Instance Let
"""
_COMMANDS = """
Proof Qed Defined Inductive CoInductive Variant Record Structure Class Ltac Ltac2 Tactic Notation
Infix Reserved Open Close Delimit Bind Arguments Implicit Generalizable Hint Create Existing Scheme
Combined Section End Module Import Export Require From Context Variable Variables Hypothesis
Hypotheses Check Print Search Show Eval Compute About Locate Goal Next Obligation Obligations Opaque
Transparent Strategy Coercion Canonical Set Unset Derive Unfocus Focus
"""
_OPTIONS = """
Implicit Arguments
Strict Implicit
Contextual Implicit
Maximal Implicit Insertion
Asymmetric Patterns
Printing Width
Printing Depth
Intuition Negation Unfolding
Default Proof Using
Default Goal Selector
Bullet Behavior
"""
STATES = frozenset(_STATES.split())
"""Commands that name something with a body or a proof."""
COMMANDS = STATES | frozenset(_COMMANDS.split())
"""What a sentence may begin with, if it begins with a capital letter."""
OPTIONS = tuple(_OPTIONS.strip().splitlines())
"""Options that may be set: none of them is read by the kernel."""
ATTRIBUTES = frozenset(("local", "global", "export", "program", "polymorphic", "universes"))
_MODIFIERS = frozenset(
    (
        "Local",
        "Global",
        "Polymorphic",
        "Monomorphic",
        "Program",
        "Fail",
        "Time",
        "Timeout",
        "Succeed",
    )
)
_WORD = re.compile(r"[A-Za-z_][\w']*")
_ATTRIBUTE = re.compile(r"#\[([^\]]*)\]")
_FORBIDDEN_WORDS = frozenset({"native_compute", "native_cast_no_check", "plugin", "bypass_check"})


class Unreadable(ValueError):
    """A text that is no Coq, in words."""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text with comments left out and strings emptied, the last one unfinished.

    Raises:
        Unreadable: a comment or a string has no end.
    """
    out: list[str] = []
    place = 0
    while place < len(text):
        if text.startswith("(*", place):
            place = _after_comment(text, place)
            out.append(" ")
        elif text[place] == '"':
            place = _after_string(text, place)
            out.append('""')
        elif text[place] == "." and (place + 1 == len(text) or text[place + 1].isspace()):
            yield "".join(out).strip() + "."
            out, place = [], place + 1
        else:
            out.append(text[place])
            place += 1
    rest = "".join(out).strip()
    if rest:
        yield rest


def _after_string(text: str, place: int) -> int:
    end = text.find('"', place + 1)
    while end >= 0 and text.startswith('""', end):
        end = text.find('"', end + 2)
    if end < 0:
        raise Unreadable("a string has no end")
    return end + 1


def _after_comment(text: str, place: int) -> int:
    """Comments nest, and a string in a comment hides what it holds."""
    depth = 0
    while place < len(text):
        if text.startswith("(*", place):
            depth, place = depth + 1, place + 2
        elif text.startswith("*)", place):
            depth, place = depth - 1, place + 2
            if depth == 0:
                return place
        elif text[place] == '"':
            place = _after_string(text, place)
        else:
            place += 1
    raise Unreadable("a comment has no end")


def refused(text: str) -> str:
    """Why a text is not a proof that may be compiled; empty when nothing speaks against it."""
    try:
        found = list(sentences(text))
    except Unreadable as error:
        return str(error)
    if found and not found[-1].endswith("."):
        return f"the last sentence has no end: {found[-1][:80]!r}"
    for sentence in found:
        why = _why(sentence)
        if why:
            return f"{why}: {sentence[:80]!r}"
    return ""


def declares(text: str, name: str) -> bool:
    """Whether some sentence states or defines that name."""
    for sentence in sentences(text):
        words = _words(sentence)
        if len(words) > 1 and words[0] in STATES and words[1] == name:
            return True
    return False


def _words(sentence: str) -> list[str]:
    """Its words from the command on: no attributes, modifiers, bullets or braces."""
    words = _WORD.findall(_ATTRIBUTE.sub(" ", sentence))
    while words and words[0] in _MODIFIERS:
        words.pop(0)
    return words


def _why(sentence: str) -> str:
    for attributes in _ATTRIBUTE.findall(sentence):
        for word in _WORD.findall(attributes):
            if word not in ATTRIBUTES:
                return f"the attribute {word!r} is not allowed"
    words = _words(sentence)
    forbidden = _FORBIDDEN_WORDS.intersection(words)
    if forbidden:
        return f"{min(forbidden)!r} is not allowed"
    if not words or not words[0][0].isupper():
        return ""
    head = words[0]
    if head not in COMMANDS:
        return f"the command {head!r} is not allowed"
    if head in ("Set", "Unset"):
        option = sentence.partition(head)[2].strip(" .")
        if not any(option == each or option.startswith(each + " ") for each in OPTIONS):
            return f"the option {option!r} may not be set"
    return ""
