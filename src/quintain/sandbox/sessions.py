"""How a sandbox opens its sessions: the same over every backend that attaches processes."""

from __future__ import annotations

from quintain.sandbox.attached import Attaching
from quintain.sandbox.interpreter import PythonSession
from quintain.sandbox.session import ShellSession


class WithSessions(Attaching):
    """What an `Attaching` sandbox gains by being one."""

    _sessions = 0

    async def session(self) -> ShellSession:
        """A persistent shell; several may run side by side.

        Raises:
            SandboxError: the sandbox is broken, or has no shell.
        """
        self._sessions += 1
        session = ShellSession(self, f"/run/session-{self._sessions}")
        await session.start()
        return session

    async def python(self) -> PythonSession:
        """A persistent Python interpreter; several may run side by side.

        Raises:
            SandboxError: the sandbox is broken, or has no Python.
        """
        session = PythonSession(self)
        await session.start()
        return session
