"""Plain values as JSON with tagged types, on both sides of the border; sent into sandboxes as text.

Whatever is decoded is built here, of exact types: no object of the other side ever arrives. What is
not plain stays where it is and is named by a number (`encode_other`, `decode_other`).
"""

from __future__ import annotations

import base64
import datetime
import decimal
import fractions
import json
import pathlib
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 200


class NotPlain(TypeError):
    """A value that cannot cross the border, or bytes that stand for none."""


def encode(value: Any, other: Callable[[Any], Any], depth: int = 0) -> Any:
    """A value as tagged JSON; subclasses of plain types lose what they add.

    Args:
        value: what to encode.
        other: encodes what is not plain, or raises `NotPlain`.
        depth: how deep the value stands.
    """
    if depth > MAX_DEPTH:
        raise NotPlain("nested too deeply")
    kinds = type(value).__mro__
    if value is None or type(value) is bool:
        return value
    if int in kinds:
        return {"i": hex(int.__int__(value))}
    if float in kinds:
        return {"f": float.hex(float.__float__(value))}
    if str in kinds:
        return str.__str__(value)
    for tag, many in MANY.items():
        if many in kinds:
            return {tag: [encode(item, other, depth + 1) for item in many.__iter__(value)]}
    if dict in kinds:
        pairs = dict.items(value)
        return {"d": [[encode(k, other, depth + 1), encode(v, other, depth + 1)] for k, v in pairs]}
    if bytes in kinds or bytearray in kinds:
        return {"b" if bytes in kinds else "B": bytes(value).hex()}
    if complex in kinds:
        return {"c": [float.hex(value.real), float.hex(value.imag)]}
    for kind, (tag, _) in TEXTS.items():
        if type(value) is kind:
            return {tag: str(value)}
    if isinstance(value, pathlib.PurePath):
        return {"P": str(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), other, depth + 1)
    return other(value)


MANY: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset}
TEXTS: dict[type, tuple[str, Callable[[str], Any]]] = {
    decimal.Decimal: ("D", decimal.Decimal),
    fractions.Fraction: ("F", fractions.Fraction),
    datetime.datetime: ("T", datetime.datetime.fromisoformat),
    datetime.date: ("Y", datetime.date.fromisoformat),
    datetime.time: ("M", datetime.time.fromisoformat),
}
OF_TEXT = {tag: (kind, make) for kind, (tag, make) in TEXTS.items()}


def decode(value: Any, other: Callable[[Any], Any], depth: int = 0) -> Any:
    """The value behind tagged JSON.

    Args:
        value: parsed JSON, of whatever origin.
        other: the value behind a tag `o`, or raises `NotPlain`.
        depth: how deep the value stands.
    """
    if depth > MAX_DEPTH:
        raise NotPlain("nested too deeply")
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is not dict or len(value) != 1:
        raise NotPlain("a malformed value")
    ((tag, inside),) = value.items()
    if tag in ("l", "t", "s", "z", "d"):
        if type(inside) is not list:
            raise NotPlain("a malformed value")
        if tag == "d":
            return {
                decode(key, other, depth + 1): decode(item, other, depth + 1)
                for key, item in inside
            }
        items = [decode(item, other, depth + 1) for item in inside]
        return MANY[tag](items)
    if tag == "o":
        return other(inside)
    if tag == "c":
        real, imaginary = map(float.fromhex, inside)
        return complex(real, imaginary)
    if type(inside) is not str:
        raise NotPlain("a malformed value")
    if tag == "i":
        return int(inside, 16)
    if tag == "f":
        return float.fromhex(inside)
    if tag == "b":
        return bytes.fromhex(inside)
    if tag == "B":
        return bytearray.fromhex(inside)
    if tag == "P":
        return pathlib.Path(inside)
    if tag in OF_TEXT:
        return OF_TEXT[tag][1](inside)
    raise NotPlain("an unknown tag")


def to_line(message: Any) -> str:
    """A JSON value as one word of base64."""
    text = json.dumps(message, separators=(",", ":"))
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def from_line(line: str) -> Any:
    """The JSON value in a word of base64."""
    return json.loads(base64.b64decode(line, validate=True).decode("utf-8", "surrogatepass"))
