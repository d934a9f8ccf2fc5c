"""What every noun is made of: a frozen, strict, JSON-able record, and stable hashes and seeds."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict of the same."""


class Record(BaseModel):
    """A frozen pydantic model that refuses unknown fields; bytes travel as base64 in JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def canonical(value: Json) -> str:
    """JSON text with sorted keys and no spaces: equal values give equal texts."""
    return _encoder.encode(value)


def digest(*parts: object) -> str:
    """A 128-bit hex digest of the parts, the same on every machine and in every process.

    Parts are length-prefixed, so that ("ab", "c") and ("a", "bc") differ. Strings and bytes are
    taken as they are; anything else by its canonical JSON.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, bytes):
            data = part
        elif isinstance(part, str):
            data = part.encode("utf-8", "surrogatepass")
        elif type(part) is int:
            data = b"%d" % part
        else:
            data = canonical(part).encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2**63) from (run seed, task id, sample index, step, …): see `digest`."""
    return int(digest(*parts)[:16], 16) >> 1
