"""What all verbs share: where to print, how errors look, exit codes, and an orderly Ctrl-C."""

from __future__ import annotations

import functools
import json
import logging
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import typer
from rich.console import Console
from rich.markup import escape

from quintain.errors import (
    ConfigError,
    QuintainError,
    RegistryError,
    StoreError,
    TaskError,
)
from quintain.record import Json

F = TypeVar("F", bound=Callable[..., None])

NEGATIVE, MISUSE, INTERRUPTED = 1, 2, 130
"""Exit codes besides 0."""
_YOURS = (ConfigError, RegistryError, TaskError, StoreError)
"""Errors that whoever typed the command can mend."""


class _State:
    """Set by the options of the running verb."""

    verbose = False
    resume_hint = ""
    """What to type to go on, once there is something to go on with."""


def out() -> Console:
    """The console that results go to."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """The console that progress, warnings and errors go to."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Json) -> None:
    """One JSON document, on standard output alone."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def set_verbose(verbose: bool) -> None:
    """Shows log messages and tracebacks, or only warnings."""
    _State.verbose = verbose
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s",
        stream=sys.stderr,
        force=True,
    )


def can_resume(hint: str) -> None:
    """From now on an interruption tells how to go on."""
    _State.resume_hint = hint


def fail(message: str, code: int = MISUSE) -> NoReturn:
    """Prints the message as an error and ends with the code."""
    err().print(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(code)


def verb(function: F) -> F:
    """Around a verb: turns errors into one clear line and an exit code, Ctrl-C into an orderly end.

    A `SIGTERM` is treated as Ctrl-C, so that a stopped job cleans up and can be resumed.
    """

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> None:
        _State.resume_hint = ""
        previous = _on_terminate()
        try:
            function(*arguments, **options)
        except KeyboardInterrupt:
            err().print("\ninterrupted; what is finished is stored, nothing is left running")
            if _State.resume_hint:
                err().print(f"go on with:\n  {escape(_State.resume_hint)}")
            raise typer.Exit(INTERRUPTED) from None
        except QuintainError as error:
            if _State.verbose:
                raise
            fail(_words(error), MISUSE if isinstance(error, _YOURS) else NEGATIVE)
        finally:
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)

    return cast("F", wrapped)


def _on_terminate() -> Any:
    """Makes SIGTERM an interrupt; returns the former handler, None outside the main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell starts background jobs so; they would never hear the interrupt either.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        return None


def _words(error: QuintainError) -> str:
    text = str(error) or type(error).__name__
    for note in getattr(error, "__notes__", ()):
        text += f"\n{note}"
    return text
