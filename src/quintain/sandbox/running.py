"""An open native sandbox, seen from its owner: commands, files, sessions, its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from quintain.errors import CapabilityError, SandboxError, SandboxTimeout
from quintain.protocols import Entry, ExecResult
from quintain.sandbox import layout, network, wire
from quintain.sandbox.channel import Channel
from quintain.sandbox.command import Capture, Feed, Report
from quintain.sandbox.listing import list_folder
from quintain.sandbox.network import Gate
from quintain.sandbox.server import SpawnServer
from quintain.sandbox.session import ShellSession
from quintain.sandbox.survey import digests, survey
from quintain.task import SandboxSpec
from quintain.trajectory import Event

GRACE_S = 5.0
"""How much longer than a command's limit its minder may take to report."""
CLOSE_S = 20.0
INLINE_BYTES = 1 << 20
"""Longer files are read and written in a thread."""

Killed = Literal["", "timeout", "memory", "pids", "output"]


class NativeSandbox:
    """An open sandbox of `NativeBackend`."""

    capabilities: frozenset[str] = frozenset({"session", "list", "reset"})

    def __init__(
        self,
        spec: SandboxSpec,
        number: int,
        server: SpawnServer,
        user: int,
        missing: Mapping[str, str],
    ) -> None:
        self.spec = spec
        self.missing = dict(missing)
        """What is not enforced (only with `allow_weaker`): name to reason."""
        self._number = number
        self._server = server
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._sessions = 0
        self._broken = ""
        self._closed = False
        self._gone: asyncio.Future[int] | None = None
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours, self._told, self._on_hang_up)
        self._env = layout.environment(spec)
        self._gate: Gate | None = None
        self._listener: socket.socket | None = None
        if spec.network.mode != "none":
            self.capabilities = self.capabilities - {"reset"} | {"network_log"}
        self.groups: dict[str, str] = {}
        """Controller to the folder of its control group, as this process sees it."""

    async def start(self, plan: bytes | None) -> None:
        """Brings it up; called by the backend only.

        Args:
            plan: None: in the place of a sandbox with the same number, which is reset.
        """
        with self._theirs:
            control = self._theirs.fileno()
            if plan is None:
                self._gone = self._server.reset(self._number, control)
            else:
                self._gone = self._server.open(self._number, plan, control)
        self._gone.add_done_callback(self._on_gone)
        async with asyncio.timeout(self.spec.startup_s):
            await self._up
            if self.spec.network.mode != "none":
                await self._let_out()

    async def _let_out(self) -> None:
        """Serves the sandbox's way out, which its supervisor has handed over."""
        policy = self.spec.network
        listener, self._listener = self._listener, None
        self._gate = await self._server.proxy.serve(listener, policy)
        found = await network.prepare(policy)
        self._env = {**self._env, **found.environment, **self.spec.env}

    async def network_log(self) -> list[Event]:
        """What was asked of the network so far; see `quintain.protocols.NetworkLog`."""
        return [] if self._gate is None else self._gate.log.events()

    async def reset(self) -> NativeSandbox:
        """Ends every process and the writable layer; a new sandbox in the place of this one.

        Only the control groups and the (then empty) network namespace are kept: a reset saves their
        making. This object is closed by it; `survey` of the new one shows what there is.

        Raises:
            SandboxError: it did not come up again; nothing is left then.
            CapabilityError: it has a network.
        """
        if self.spec.network.mode != "none":
            raise CapabilityError(
                "a sandbox with a network is not reset: its proxy belongs to one use; "
                "open a fresh one"
            )
        self.check()
        heir = NativeSandbox(self.spec, self._number, self._server, self._user, self.missing)
        heir.groups = self.groups
        self._closed = True
        self._lose("it was reset")
        if self._gone is not None:
            self._gone.remove_done_callback(self._on_gone)
            self._gone = None
        try:
            await heir.start(None)
        except TimeoutError as error:
            await heir.close()
            raise SandboxTimeout(f"the reset took over {self.spec.startup_s} s") from error
        except OSError as error:
            await heir.close()
            raise SandboxError(f"the reset failed: {error}") from error
        except BaseException:
            await heir.close()
            raise
        finally:
            # Not before: a supervisor that is hung up on would end before it can be replaced.
            self._channel.close()
        return heir

    # --- the supervisor's words -----------------------------------------------------------------

    def _on_gone(self, gone: asyncio.Future[int]) -> None:
        if gone.cancelled():
            return
        error = gone.exception()
        if error is not None and not self._up.done():
            self._up.set_exception(error)
            return
        self._lose(f"its supervisor is gone ({error or gone.result()})")

    def _on_hang_up(self) -> None:
        # Before it is up, the server knows why and will say so.
        if self._up.done():
            self._lose("its supervisor hung up")

    def _told(self, kind: int, number: int, body: bytes, fds: list[int]) -> None:
        if kind == wire.UP and not self._up.done():
            if fds:
                self._listener = socket.socket(fileno=fds[0])
            self._up.set_result(None)
        elif kind == wire.BROKEN and not self._up.done():
            (code,) = wire.ERRNO.unpack_from(body)
            self._up.set_exception(OSError(code, body[4:].decode("utf-8", "replace")))
        elif kind in (wire.OPENED, wire.REFUSED):
            self._answered(kind, number, body, fds)

    def _answered(self, kind: int, number: int, body: bytes, fds: list[int]) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is None or waiting.done():
            for fd in fds:
                os.close(fd)
        elif kind == wire.OPENED:
            waiting.set_result(fds[0])
        else:
            (code,) = wire.ERRNO.unpack_from(body)
            waiting.set_exception(OSError(code, os.strerror(code)))

    def _lose(self, why: str) -> None:
        self._broken = self._broken or why
        error = SandboxError(f"the sandbox is broken: {why}")
        everyone: list[asyncio.Future[Any]] = [self._up, *self._answers.values()]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        self._answers.clear()

    def _ask(self, kind: int, body: bytes, fds: tuple[int, ...] = ()) -> asyncio.Future[int]:
        if self._closed or self._broken:
            why = self._broken or "it was closed"
            raise SandboxError(f"the sandbox cannot be used any more: {why}")
        self._next += 1
        answer: asyncio.Future[int] = self._loop.create_future()
        self._answers[self._next] = answer
        try:
            self._channel.send(kind, self._next, body, fds)
        except OSError as error:
            self._answers.pop(self._next, None)
            self._lose(f"its supervisor does not answer ({error})")
            raise SandboxError(f"the sandbox is broken: {self._broken}") from error
        return answer

    # --- commands -------------------------------------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs a command to its end, or kills its whole tree at the limit.

        What the command leaves running is killed when it ends. See
        `quintain.protocols.Sandbox.exec`.
        """
        if not argv:
            raise ValueError("argv is empty: expected a program and its arguments")
        limit_s = self.spec.exec_s if timeout_s is None else timeout_s
        data = stdin.encode() if isinstance(stdin, str) else stdin
        most = self.spec.max_output_bytes
        began = time.monotonic()
        out, err = Capture(self._loop, most), Capture(self._loop, most)
        feed, report = Feed(self._loop, data), Report(self._loop)
        try:
            fds = (feed.read_end, out.write_end, err.write_end, report.write_end)
            try:
                answer = self._ask(wire.EXEC, self._request(argv, limit_s, env, cwd), fds)
            finally:
                for fd in fds:
                    os.close(fd)
            record = await self._await_report(report, answer, limit_s)
        finally:
            report.close()
            feed.close()
            out.finish()
            err.finish()
        truncated = out.truncated or err.truncated
        wall_s = time.monotonic() - began
        return _result(record, argv, cwd or self.spec.workdir, out, err, wall_s, truncated)

    def start_command(self, argv: Sequence[str], fds: tuple[int, ...]) -> int:
        """Starts a command without a time limit; returns its number, for `tell`.

        Args:
            argv: program and arguments.
            fds: its stdin, stdout and stderr, and where its minder reports.
        """
        self._ask(wire.EXEC, self._request(argv, None, None, None), fds)
        number = self._next
        self._answers.pop(number)
        return number

    def tell(self, kind: int, number: int, body: bytes = b"") -> None:
        """Sends the supervisor a word that has no answer."""
        with contextlib.suppress(OSError):
            self._channel.send(kind, number, body)

    def check(self) -> None:
        """Raises SandboxError if the sandbox is broken."""
        self._channel.poll()
        if self._broken:
            raise SandboxError(f"the sandbox is broken: {self._broken}")

    async def session(self) -> ShellSession:
        """A persistent shell; several may run side by side.

        Raises:
            SandboxError: the sandbox is broken, or has no shell.
        """
        self._sessions += 1
        session = ShellSession(self, f"/run/session-{self._sessions}")
        await self.write(f"/run/session-{self._sessions}/script", "")
        await session.start()
        return session

    def _request(
        self,
        argv: Sequence[str],
        limit_s: float | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
    ) -> bytes:
        where = self._path(cwd) if cwd else self.spec.workdir
        pairs = [f"{name}={value}" for name, value in {**self._env, **(env or {})}.items()]
        for word in (where, *argv, *pairs):
            if "\0" in word:
                raise ValueError(f"a NUL byte in {word[:80]!r}: no command can take it")
        limit_ms = 0 if limit_s is None else min(0xFFFFFFFF, max(1, round(limit_s * 1000)))
        head = wire.EXEC_HEAD.pack(limit_ms, self._user, self._user, 0, len(argv), len(pairs))
        return head + b"".join(wire.text(word) for word in (where, *argv, *pairs))

    async def _await_report(
        self, report: Report, answer: asyncio.Future[int], limit_s: float
    ) -> bytes:
        number = self._next
        try:
            async with asyncio.timeout(limit_s + GRACE_S):
                record = await report.record
        except TimeoutError:
            self.tell(wire.KILL, number)
            try:
                async with asyncio.timeout(GRACE_S):
                    await report.record
            except TimeoutError as error:
                self._lose("a command could not be killed")
                raise SandboxTimeout("the sandbox is broken: no command can be killed") from error
            return wire.STATUS.pack(9, 0, 0, wire.TIMED_OUT, 0, 0, 0, 0)
        finally:
            self._answers.pop(number, None)
        if len(record) == wire.STATUS.size:
            return record
        self._channel.poll()
        if answer.done():
            reason = answer.exception()
            if isinstance(reason, OSError) and not isinstance(reason, SandboxError):
                return wire.STATUS.pack(0, reason.errno, wire.AT_FORK, 0, 0, 0, 0, 0)
        if self._broken:
            raise SandboxError(f"the sandbox is broken: {self._broken}")
        return wire.STATUS.pack(9, 0, 0, 0, 0, 0, 0, 0)

    # --- files ----------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.spec.workdir}/{path}"

    async def open_file(self, path: str, purpose: int = wire.READ, mode: int = 0) -> int:
        """A descriptor of a regular file inside, which the caller closes; see `wire.READ`."""
        where = self._path(path)
        if "\0" in where:
            raise ValueError(f"a NUL byte in the path {path!r}")
        body = wire.FILE_HEAD.pack(purpose, mode, self._user, self._user) + wire.text(where)
        try:
            async with asyncio.timeout(GRACE_S + self.spec.startup_s):
                return await self._ask(wire.FILE, body)
        except TimeoutError as error:
            raise SandboxTimeout(f"the sandbox did not open {path!r} in time") from error
        except SandboxError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file; see `quintain.protocols.Sandbox.read`."""
        fd = await self.open_file(path)
        try:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"{size} bytes, allowed are {max_bytes}", path)
            if size <= INLINE_BYTES:
                return _read_all(fd, max_bytes)
            return await asyncio.to_thread(_read_all, fd, max_bytes)
        finally:
            os.close(fd)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders; see `quintain.protocols.Sandbox.write`."""
        content = data.encode() if isinstance(data, str) else data
        fd = await self.open_file(path, wire.REPLACE, mode)
        try:
            if len(content) <= INLINE_BYTES:
                _write_all(fd, content)
            else:
                await asyncio.to_thread(_write_all, fd, content)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    async def survey(self) -> dict[str, str]:
        """What there is inside, as one digest an aspect; see `quintain.protocols.Resettable`.

        Raises:
            SandboxError: the sandbox is broken.
        """
        return digests(await survey(self.open_file, self.groups, self._env))

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """What lies under a folder; see `quintain.protocols.Listing.entries`."""
        fd = await self.open_file(path, wire.FOLDER)
        try:
            return await asyncio.to_thread(list_folder, fd, max_entries)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    async def close(self) -> None:
        """Ends every process and removes everything; may be called twice."""
        if not self._closed:
            self._closed = True
            self._lose("it was closed")
            self._server.end(self._number)
            self._channel.close()
            if self._listener is not None:
                self._listener.close()
            if self._gate is not None:
                await self._gate.close()
        if self._gone is None:
            return
        done, _ = await asyncio.wait([self._gone], timeout=CLOSE_S)
        if not done:
            raise SandboxTimeout(f"a sandbox was not gone {CLOSE_S} s after it was closed")


def _read_all(fd: int, max_bytes: int) -> bytes:
    data = bytearray()
    while len(data) <= max_bytes:
        piece = os.read(fd, min(1 << 20, max_bytes + 1 - len(data)))
        if not piece:
            return bytes(data)
        data += piece
    raise OSError(errno.EFBIG, f"longer than the {max_bytes} bytes allowed")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _result(
    record: bytes,
    argv: Sequence[str],
    cwd: str,
    out: Capture,
    err: Capture,
    wall_s: float,
    truncated: bool,
) -> ExecResult:
    status, code, where, flags, cpu_us, _, ooms, refused = wire.STATUS.unpack(record)
    killed: Killed = ""
    stderr = bytes(err.data)
    exit_code = os.waitstatus_to_exitcode(status)
    if code:
        exit_code = 127 if code == errno.ENOENT and where == wire.AT_EXEC else 126
        what = f"{argv[0]!r}" if where != wire.AT_CHDIR else f"the folder {cwd!r}"
        stderr += f"cannot run {what}: {os.strerror(code)}\n".encode()
        if where == wire.AT_FORK or code == errno.EAGAIN:
            killed = "pids"
    elif flags & wire.TIMED_OUT:
        killed = "timeout"
    elif exit_code and ooms:
        killed = "memory"
    elif exit_code and refused:
        killed = "pids"
    return ExecResult(
        exit_code=exit_code,
        stdout=bytes(out.data),
        stderr=stderr,
        wall_s=wall_s,
        cpu_s=cpu_us / 1e6,
        killed=killed,
        truncated=truncated,
    )
