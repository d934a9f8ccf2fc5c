"""What a microVM was at one moment: its whole state, in a file without a name."""

from __future__ import annotations

import os
import weakref

from quintain.task import SandboxSpec


class MicrovmSnapshot:
    """The state of a machine; opens new ones and is a context manager.

    It is a value: the sandbox may go on or be closed. Its file goes with this process, at `close`,
    or when nobody holds it any more.

    Args:
        spec: of the sandbox that it was taken from.
        kind: of the machine; only one of the same kind can take it.
        state: a descriptor of the file, which it closes.
        digest: of what was written.
        first: id of the first request to an agent that remembers those before.
    """

    def __init__(self, spec: SandboxSpec, kind: str, state: int, digest: str, first: int) -> None:
        self.spec, self.kind, self.first = spec, kind, first
        self._state, self._digest = state, digest
        self._end = weakref.finalize(self, os.close, state)

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return os.fstat(self.state()).st_blocks * 512

    @property
    def digest(self) -> str:
        """Of names, kinds, modes, owners and contents of what was written; times do not count."""
        return self._digest

    def state(self) -> int:
        """The descriptor, while it is open."""
        if not self._end.alive:
            raise ValueError("the snapshot was closed")
        return self._state

    def reader(self) -> int:
        """A descriptor of its own, at the beginning, for one machine to begin with."""
        return os.open(f"/proc/self/fd/{self.state()}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Frees the file; may be called twice."""
        self._end()

    def __enter__(self) -> MicrovmSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
