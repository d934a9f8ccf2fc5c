"""Plain values across the border to untrusted code: tagged JSON, and comparison by exact type.

A task file writes cases in JSON, with `{"$tuple": […]}`, `{"$set": […]}`, `{"$dict": [[key, value],
…]}`, `{"$bytes": "hex"}`, `{"$float": "nan" | "inf" | …}` for what JSON lacks. On the way to the
runner and back, values travel with the shorter tags of `runner.py`. What comes back was written by
the candidate: it is data of these types and nothing else, so no object of the candidate's ever
takes part in a comparison.
"""

from __future__ import annotations

import json
import math
from typing import Any

from quintain.record import Json

MAX_ANSWER_DEPTH = 200
Plain = Any
"""None, bool, int, float, complex, str, bytes, list, tuple, dict, set of plain values."""


class NotPlain(ValueError):
    """Bytes or a JSON value that stand for no plain value."""


def from_task(value: Json) -> Plain:
    """The value that a task's JSON means.

    Raises:
        NotPlain: an unknown tag, or a malformed one.
    """
    if isinstance(value, list):
        return [from_task(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: from_task(item) for key, item in value.items()}
    ((tag, inside),) = value.items()
    try:
        match tag:
            case "$tuple":
                return tuple(from_task(item) for item in inside)
            case "$set":
                return {from_task(item) for item in inside}
            case "$dict":
                return {from_task(key): from_task(item) for key, item in inside}
            case "$bytes":
                return bytes.fromhex(inside)
            case "$float":
                return float(inside)
    except (TypeError, ValueError) as error:
        raise NotPlain(f"malformed {tag}: {error}") from error
    raise NotPlain(f"unknown tag {tag!r}; known: $tuple, $set, $dict, $bytes, $float")


def to_task(value: Plain) -> Json:
    """A plain value in the notation of a task's JSON.

    Raises:
        NotPlain: it has none (a complex number).
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, list):
        return [to_task(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [to_task(item) for item in value]}
    if isinstance(value, set):
        return {"$set": sorted((to_task(item) for item in value), key=repr)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, dict):
        plain = all(isinstance(key, str) for key in value)
        tagged = len(value) == 1 and plain and next(iter(value)).startswith("$")
        if plain and not tagged:
            return {key: to_task(item) for key, item in value.items()}
        return {"$dict": [[to_task(key), to_task(item)] for key, item in value.items()]}
    raise NotPlain(f"a {type(value).__name__} has no notation")


def pack(value: Plain) -> Json:
    """A plain value as the runner's tagged JSON."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {"i": hex(value)}
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, tuple):
        return {"t": [pack(item) for item in value]}
    if isinstance(value, dict):
        return {"d": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, set):
        return {"s": [pack(item) for item in value]}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    raise NotPlain(f"a {type(value).__name__} is not plain data")


def unpack(data: bytes) -> Plain:
    """The plain value in a candidate's bytes.

    Raises:
        NotPlain: they hold none.
    """
    try:
        return _unpacked(json.loads(data.decode("utf-8", "surrogatepass")), 0)
    except NotPlain:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise NotPlain(f"the answer is not plain data: {type(error).__name__}") from error


def _unpacked(value: Json, depth: int) -> Plain:
    if depth > MAX_ANSWER_DEPTH:
        raise NotPlain("the answer is nested too deeply")
    if isinstance(value, list):
        return [_unpacked(item, depth + 1) for item in value]
    if isinstance(value, float):
        raise NotPlain("an untagged float")
    if not isinstance(value, dict):
        return value
    ((tag, inside),) = value.items()
    match tag:
        case "i":
            return int(_text(inside), 16)
        case "f":
            return float.fromhex(_text(inside))
        case "t":
            return tuple(_unpacked(item, depth + 1) for item in inside)
        case "d":
            pairs = [(_unpacked(k, depth + 1), _unpacked(v, depth + 1)) for k, v in inside]
            return dict(pairs)
        case "s":
            return {_unpacked(item, depth + 1) for item in inside}
        case "b":
            return bytes.fromhex(_text(inside))
        case "c":
            return complex(*(float.fromhex(_text(item)) for item in inside))
    raise NotPlain(f"unknown tag {tag!r}")


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise NotPlain("a malformed tag")
    return value


def equal(expected: Plain, answer: Plain, *, rel: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether two plain values are the same.

    Types are exact: True is not 1, 1.0 is not 1, `[1]` is not `{1}`. Two allowances: where a float
    is expected, an int of that value counts, and floats may differ by the tolerance; where JSON's
    list is expected, a tuple counts, which JSON cannot write. NaN equals nothing.

    Args:
        expected: what the task says.
        answer: what came back.
        rel: largest relative difference of two floats.
        absolute: largest absolute difference of two floats.
    """
    kind = type(expected)
    if kind is float:
        if type(answer) not in (int, float):
            return False
        return _floats(expected, answer, rel, absolute)
    if kind is list:
        if type(answer) not in (list, tuple):
            return False
    elif type(answer) is not kind:
        return False
    if kind in (list, tuple):
        return len(expected) == len(answer) and all(
            equal(one, other, rel=rel, absolute=absolute)
            for one, other in zip(expected, answer, strict=True)
        )
    if kind is dict:
        keys = {(type(key), key): key for key in answer}
        return len(expected) == len(answer) and all(
            (type(key), key) in keys
            and equal(item, answer[keys[type(key), key]], rel=rel, absolute=absolute)
            for key, item in expected.items()
        )
    if kind is set:
        return {(type(item), item) for item in expected} == {(type(item), item) for item in answer}
    return bool(expected == answer)


def _floats(expected: float, answer: float, rel: float, absolute: float) -> bool:
    if isinstance(answer, int):
        # A huge int has no float; an exact comparison needs none.
        if abs(answer) > 2**1023:
            return False
        answer = float(answer)
    if math.isnan(expected) or math.isnan(answer):
        return False
    if math.isinf(expected) or math.isinf(answer):
        return expected == answer
    return math.isclose(expected, answer, rel_tol=rel, abs_tol=absolute)
