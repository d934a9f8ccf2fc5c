"""A sandbox on another machine, seen from its owner: every call travels to its landlord."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quintain import errors
from quintain.errors import CapabilityError, IsolationError, SandboxError, SandboxTimeout
from quintain.protocols import Entry, ExecResult, PythonResult
from quintain.record import Json
from quintain.sandbox.asked import check_command
from quintain.task import SandboxSpec
from quintain.trajectory import Event

if TYPE_CHECKING:
    import ray

GRACE_S = 30.0
"""How much longer than its own limit a call may take, travel included."""
CLOSE_S = 20.0


class NodeLost(SandboxError):
    """The node, or this process's actor on it, is gone with all its sandboxes."""


async def answer_of(ref: ray.ObjectRef[Any], what: str) -> Any:
    """What an actor answered, or the error that it tells of.

    Raises:
        NodeLost: node or actor are gone.
        SandboxError: what the sandbox there raised.
        OSError: likewise.
    """
    import ray

    try:
        kind, *told = await asyncio.wrap_future(ref.future())
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            ray.cancel(ref)
        raise
    except ray.exceptions.RayTaskError as error:
        raise SandboxError(f"{what}: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[:1]
        raise NodeLost(f"{what} is lost: {type(error).__name__}: {' '.join(first)}") from error
    if kind == "ok":
        return told[0]
    if kind == "isolation":
        raise IsolationError(told[0], tuple(told[1]))
    if kind == "os":
        number, text, name = told
        raise OSError(number, text, name) if name else OSError(number, text)
    if kind == "value":
        raise ValueError(told[0])
    raise getattr(errors, told[0], SandboxError)(told[1])


class LeasedSandbox:
    """An open sandbox of `RayBackend`."""

    def __init__(
        self,
        spec: SandboxSpec,
        told: Json,
        actor: Any,
        node: str,
        ended: Callable[[str], Awaitable[None]],
    ) -> None:
        self.spec = spec
        self.capabilities = frozenset(told["capabilities"])
        self.missing: dict[str, str] = told["missing"]
        """What its node does not enforce (only with `allow_weaker`): name to reason."""
        self.isolation: str = told["isolation"]
        self.node = node
        """The id of its node."""
        self._lease: int = told["lease"]
        self._actor = actor
        self._ended = ended
        self._lost = ""
        self._closed = False

    async def ask(self, within_s: float, method: str, *arguments: Any) -> Any:
        """Calls the landlord for this lease.

        Raises:
            SandboxError: the node is lost, or the sandbox broken.
            SandboxTimeout: no answer in time.
        """
        if self._closed or self._lost:
            why = self._lost or "it was closed"
            raise SandboxError(f"the sandbox cannot be used any more: {why}")
        try:
            async with asyncio.timeout(within_s):
                ref = getattr(self._actor, method).remote(*arguments)
                return await answer_of(ref, f"the sandbox's node {self.node[:8]}")
        except NodeLost as error:
            self._lost = str(error)
            raise
        except TimeoutError as error:
            if isinstance(error, SandboxError):
                raise
            raise SandboxTimeout(
                f"node {self.node[:8]} did not answer within {within_s:g} s"
            ) from error

    async def _call(self, within_s: float, name: str, **arguments: Any) -> Any:
        return await self.ask(within_s, "call", self._lease, name, arguments)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs a command there; see `quintain.protocols.Sandbox.exec`."""
        check_command(argv, stdin, timeout_s, env)
        limit_s = self.spec.exec_s if timeout_s is None else timeout_s
        found: ExecResult = await self._call(
            limit_s + GRACE_S,
            "exec",
            argv=list(argv),
            stdin=stdin,
            timeout_s=timeout_s,
            env=dict(env) if env else None,
            cwd=cwd,
        )
        return found

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file; see `quintain.protocols.Sandbox.read`."""
        found: bytes = await self._call(GRACE_S, "read", path=path, max_bytes=max_bytes)
        return found

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file; see `quintain.protocols.Sandbox.write`."""
        await self._call(GRACE_S, "write", path=path, data=data, mode=mode)

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """What lies under a folder; see `quintain.protocols.Listing.entries`."""
        self._need("list")
        found: list[Entry] = await self._call(
            GRACE_S, "entries", path=path, max_entries=max_entries
        )
        return found

    async def network_log(self) -> list[Event]:
        """What was asked of the network so far; see `quintain.protocols.NetworkLog`."""
        self._need("network_log")
        found: list[Event] = await self._call(GRACE_S, "network_log")
        return found

    async def session(self) -> LeasedShell:
        """A persistent shell there; see `quintain.protocols.Sessions`."""
        self._need("session")
        return LeasedShell(self, await self.ask(GRACE_S, "console", self._lease, "session"))

    async def python(self) -> LeasedPython:
        """A persistent interpreter there; see `quintain.protocols.Pythons`."""
        self._need("python")
        return LeasedPython(self, await self.ask(GRACE_S, "console", self._lease, "python"))

    def _need(self, capability: str) -> None:
        if capability not in self.capabilities:
            raise CapabilityError(f"the sandbox behind this lease has no {capability!r}")

    async def close(self) -> None:
        """Ends the sandbox there and frees its slot; may be called twice."""
        if self._closed:
            return
        try:
            if not self._lost:
                with contextlib.suppress(NodeLost):
                    await self.ask(CLOSE_S, "release", self._lease)
        finally:
            self._closed = True
            await self._ended(self._lost)


class _Console:
    """Something that stays from call to call, on another machine."""

    def __init__(self, sandbox: LeasedSandbox, number: int) -> None:
        self._sandbox = sandbox
        self._number = number
        self._closed = False
        self.restarts = 0
        """How often it began anew, its state lost."""

    async def _run(self, timeout_s: float | None, **arguments: Any) -> Any:
        limit_s = self._sandbox.spec.exec_s if timeout_s is None else timeout_s
        arguments["timeout_s"] = timeout_s
        found, self.restarts = await self._sandbox.ask(
            limit_s + GRACE_S, "run", self._number, arguments
        )
        return found

    async def close(self) -> None:
        """Ends it and everything that it started; may be called twice."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(NodeLost):
                await self._sandbox.ask(CLOSE_S, "end", self._number)


class LeasedShell(_Console):
    """A shell on another machine."""

    async def run(
        self, command: str, *, stdin: bytes | str = b"", timeout_s: float | None = None
    ) -> ExecResult:
        """Runs a command after those before it; see `quintain.protocols.Session.run`."""
        found: ExecResult = await self._run(timeout_s, command=command, stdin=stdin)
        return found


class LeasedPython(_Console):
    """An interpreter on another machine."""

    async def run(self, code: str, *, timeout_s: float | None = None) -> PythonResult:
        """Runs a cell after those before it; see `quintain.protocols.PythonConsole.run`."""
        found: PythonResult = await self._run(timeout_s, code=code)
        return found
