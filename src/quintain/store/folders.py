"""Where a new run goes when nobody says."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path


def new_folder(name: str, *, under: str | Path = "runs") -> Path:
    """A folder for a new run, named by what runs and when; not made yet.

    Names sort by time within one `name`; two of one second differ by a random end.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(under) / f"{safe}-{stamp}-{secrets.token_hex(2)}"
