"""Inputs like those of a suite: each is one of its own, changed a little, types kept.

Whether a variation is a sensible input is for the reference to say: where that raises, it is none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from quintain.record import Json
from quintain.verifiers.cases import FunctionCase, StreamCase, Suite
from quintain.verifiers.plain import NotPlain, Plain, from_task, to_task

Item = TypeVar("Item")
Case = FunctionCase | StreamCase
_WORD = re.compile(r"\S+")
_INTEGER = re.compile(r"-?\d+\Z")


def variations(suite: Suite, most: int, seed: int = 0) -> list[Json]:
    """New inputs: argument lists in a task's notation, or standard inputs.

    Args:
        suite: whose inputs are changed.
        most: how many.
        seed: of the changes.
    """
    rng = random.Random(seed)
    cases: Sequence[Case] = suite.cases
    known = [_input(case) for case in cases]
    found: list[Json] = []
    for _ in range(10 * most):
        if len(found) == most:
            break
        made = _varied(rng.choice(cases), cases, rng)
        if made is not None and made not in known and made not in found:
            found.append(made)
    return found


def _input(case: Case) -> Json:
    return case.stdin if isinstance(case, StreamCase) else case.input


def _varied(case: Case, cases: Sequence[Case], rng: random.Random) -> Json:
    if isinstance(case, StreamCase):
        return _stream(case.stdin, rng)
    if not case.input:
        return None
    arguments = [from_task(value) for value in case.input]
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(arguments))
        other = rng.choice(cases)
        if isinstance(other, FunctionCase) and len(other.input) > place and rng.random() < 0.2:
            arguments[place] = from_task(other.input[place])
        else:
            arguments[place] = varied(arguments[place], rng)
    try:
        return [to_task(value) for value in arguments]
    except NotPlain:
        return None


def varied(value: Plain, rng: random.Random) -> Plain:
    """A value of the same type, near the given one."""
    match value:
        case bool():
            return not value
        case int():
            near = (
                value + 1,
                value - 1,
                value + 2,
                2 * value,
                value // 2,
                0,
                1,
                rng.randint(2, 99),
            )
            return rng.choice((*near, -value) if value < 0 or rng.random() < 0.2 else near)
        case float():
            return rng.choice(
                (value + 1.0, value - 0.5, value * 2, value / 2, 0.0, float(round(value)))
            )
        case str():
            return "".join(_sequence(list(value), rng, _character))
        case bytes():
            return bytes(_sequence(list(value), rng, lambda item, rng: rng.randrange(256)))
        case list():
            return _sequence(value, rng, varied)
        case tuple() if value:
            place = rng.randrange(len(value))
            return (*value[:place], varied(value[place], rng), *value[place + 1 :])
        case set():
            return set(_sequence(sorted(value, key=repr), rng, varied))
        case dict() if value:
            key = rng.choice(list(value))
            if rng.random() < 0.3:
                return {name: item for name, item in value.items() if name != key}
            return {**value, key: varied(value[key], rng)}
    return value


def _sequence(
    items: list[Item], rng: random.Random, change: Callable[[Item, random.Random], Item]
) -> list[Item]:
    """Items dropped, doubled, swapped, reversed, sorted, or one of them changed."""
    out = list(items)
    if not out:
        return out
    place, other = rng.randrange(len(out)), rng.randrange(len(out))
    match rng.randrange(9):
        case 0:
            del out[place]
        case 1:
            out.insert(other, out[place])
        case 2:
            out[place], out[other] = out[other], out[place]
        case 3:
            out.reverse()
        case 4:
            out = out[:place]
        case 5:
            out = out[place : place + 1]
        case _:
            out[place] = change(out[place], rng)
    return out


def _character(item: str, rng: random.Random) -> str:
    if item.isalpha() and rng.random() < 0.5:
        return item.swapcase()
    if item.isdigit():
        return rng.choice("0123456789")
    return rng.choice("abcxyzAZ 019-_.,")


def _stream(text: str, rng: random.Random) -> str:
    """A text with a word of it changed, numbers to numbers, or a line dropped or doubled."""
    words = list(_WORD.finditer(text))
    if not words:
        return text
    if rng.random() < 0.2:
        return "".join(_sequence(text.splitlines(keepends=True), rng, lambda line, _: line))
    for word in rng.sample(words, min(len(words), rng.choice((1, 1, 2)))):
        old = word.group()
        new = str(varied(int(old), rng)) if _INTEGER.match(old) else varied(old, rng)
        if len(new) == len(old) or word is words[-1]:
            text = text[: word.start()] + new + text[word.end() :]
        else:
            return text[: word.start()] + new + text[word.end() :]
    return text
