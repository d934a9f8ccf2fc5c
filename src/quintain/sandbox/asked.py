"""Checks of what a caller asks a sandbox for, the same for every backend.

A wrong argument is the caller's fault and raises at once: a text in place of a list of arguments
would otherwise run its first letter, and fail the candidate for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from quintain.errors import SandboxError


def refuse_closed(name: str, closed: bool) -> None:
    """Refuses to open anything of a backend that was closed.

    Raises:
        SandboxError: it was; trying again changes nothing.
    """
    if closed:
        error = SandboxError(f"the {name} backend was closed: make a new one to open sandboxes")
        error.retryable = False
        raise error


def check_command(
    argv: object, stdin: object = b"", timeout_s: object = None, env: object = None
) -> None:
    """Refuses arguments of `exec` that are none.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: `argv` is empty, a text holds a NUL, or the time is not positive.
    """
    if isinstance(argv, str | bytes) or not hasattr(argv, "__iter__"):
        raise TypeError(
            f"argv is a list of a program and its arguments, such as ['ls', '-l'], got {argv!r}; "
            "for a shell's line write ['sh', '-c', line]"
        )
    given = list(argv)
    if not given:
        raise ValueError("argv is empty: expected a program and its arguments")
    for word in given:
        check_text("an argument", word)
    if not isinstance(stdin, str | bytes | bytearray | memoryview):
        raise TypeError(f"stdin is bytes or text, got {type(stdin).__name__}")
    if env is not None:
        if not isinstance(env, Mapping):
            raise TypeError(f"env is a mapping of names to texts, got {type(env).__name__}")
        for name, value in env.items():
            check_text("a name in env", name)
            check_text(f"env[{name!r}]", value)
    check_timeout(timeout_s)


def check_timeout(timeout_s: object) -> None:
    """Refuses what is no time limit.

    Raises:
        TypeError: not a number.
        ValueError: not positive, or not finite.
    """
    if timeout_s is None:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s is a number of seconds, got {timeout_s!r}")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is a positive, finite number of seconds, got {timeout_s!r}")


def check_text(what: str, text: object) -> None:
    """Refuses what cannot be handed to a process as text.

    Raises:
        TypeError: not text.
        ValueError: it holds a NUL.
    """
    if not isinstance(text, str | bytes):
        raise TypeError(f"{what} is text, got {text!r}")
    if ("\0" if isinstance(text, str) else b"\0") in text:  # type: ignore[operator]
        raise ValueError(f"{what} holds a NUL: {text!r}")
