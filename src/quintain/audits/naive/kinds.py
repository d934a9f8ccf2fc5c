"""What the naive graders of one form share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Graders:
    """Naive graders of one form of submission, and two honest submissions to them."""

    path: str
    """Where a grader finds the submission."""
    right: str
    """Every grader here pays for it."""
    wrong: str
    """An honest mistake, for which none may pay."""
    scripts: Mapping[str, str]
    """Name to grader: a Python program whose last line is `reward 1` or `reward 0`."""
    known: str = ""
    """What `Exploit.change` is given, where that is more than the right submission."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies in the sandbox besides."""
