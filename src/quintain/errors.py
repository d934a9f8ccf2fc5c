"""Every error that Quintain raises, and who is at fault.

::

    QuintainError
    ├── ConfigError(ValueError)            you: a setting or an argument is wrong
    ├── RegistryError(LookupError)         you: a name that nothing is registered under
    ├── TaskError(ValueError)              the task: a row, a split, a gold answer is wrong
    ├── StoreError(RuntimeError)           the run on disk cannot be read or written
    ├── TrainingError(RuntimeError)        training cannot go on
    └── RolloutError(RuntimeError)         the host: never the candidate, never reward 0
        ├── PolicyError                    the model's server or engine failed
        │   ├── PolicyRestarts             its engine is being started again: try the call again
        │   ├── ContextOverflow            the conversation no longer fits: a limit, not a fault
        │   └── PolicyRefused              it will refuse this call however often it is made
        ├── SandboxError                   the sandbox is broken (not: a command in it failed)
        │   ├── SandboxTimeout(TimeoutError)
        │   ├── IsolationError             a limit or a wall that this host cannot enforce
        │   ├── BuildError                 an image cannot be built: says which step, and its output
        │   └── CapabilityError(NotImplementedError)
        ├── EnvironmentFault               the environment's own code failed
        ├── VerifierError                  the judge failed, on whatever input
        └── HarnessError                   the harness failed

What the *candidate* causes (out of memory, a malformed call, a flood of output) is never an
exception: it is an observation, a `StopReason` or a failed verdict.
"""

from __future__ import annotations

from types import TracebackType


class QuintainError(Exception):
    """Root of the tree."""


class ConfigError(QuintainError, ValueError):
    """A setting or an argument is wrong; the message names it."""


class RegistryError(QuintainError, LookupError):
    """No plug-in is known under that name; the message lists the nearest ones."""


class TaskError(QuintainError, ValueError):
    """A task is malformed: the message names the file and the row, or the task's id."""


class StoreError(QuintainError, RuntimeError):
    """A run on disk cannot be opened, read or written."""


class TrainingError(QuintainError, RuntimeError):
    """Training cannot go on."""


class RolloutError(QuintainError, RuntimeError):
    """A fault of the host during a rollout: retried, counted, never a reward."""

    retryable: bool = True


class PolicyError(RolloutError):
    """The policy's server or engine failed."""


class ContextOverflow(PolicyError):
    """The conversation does not fit the model's context: ends the episode as a limit."""

    retryable = False


class PolicyRestarts(PolicyError):
    """The policy's process died; another starts with the next call, which may be the same again."""


class PolicyRefused(PolicyError):
    """The policy will refuse this call however often it is made."""

    retryable = False


class SandboxError(RolloutError):
    """The sandbox itself is broken; a command that fails inside it is an `ExecResult`."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox did not answer in time; a command that runs too long is an `ExecResult`."""


class IsolationError(SandboxError):
    """This host cannot enforce what the spec asks for.

    Args:
        message: what was asked, why it cannot be had, and what to do.
        missing: the names of the limits or walls that cannot be enforced.
    """

    retryable = False

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class BuildError(SandboxError):
    """An image cannot be built; the message names the step and ends with its output."""

    retryable = False


class CapabilityError(SandboxError, NotImplementedError):
    """The backend lacks the named capability."""

    retryable = False


class EnvironmentFault(RolloutError):
    """The environment's own code failed."""


class VerifierError(RolloutError):
    """The judge failed; the verdict is unknown, never 0."""


class HarnessError(RolloutError):
    """The harness failed."""


class boundary:
    """Turns a foreign exception raised inside into `kind`, saying what was going on.

    Errors of this tree pass unchanged, and so do `BaseException`s (cancellation, Ctrl-C).

    Args:
        kind: whose fault a foreign exception is.
        what: what was being done, for the message.
    """

    __slots__ = ("kind", "what")

    def __init__(self, kind: type[RolloutError], what: str) -> None:
        self.kind = kind
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, QuintainError):
            raise self.kind(f"{self.what}: {type(error).__name__}: {error}") from error
