"""The native backend: namespaces, control groups and a system-call filter, without a daemon.

A *spawn server* (`box.c`, or `launcher.py` where there is no compiler) forks a *supervisor* into
fresh namespaces for every sandbox; the supervisor is PID 1 inside, carries out the plan of
`layout.py` and starts commands that this module asks for over a socket of its own. Everything
inside dies with the supervisor, every supervisor with the server, the server with this process.

What a host cannot enforce is refused by name (`IsolationError.missing`); `allow_weaker=True` goes
on without it and says so in `NativeSandbox.missing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from quintain.errors import (
    CapabilityError,
    ConfigError,
    IsolationError,
    SandboxError,
    SandboxTimeout,
)
from quintain.protocols import ExecResult, Probe
from quintain.sandbox import build, cgroups, host, layout, probe, wire
from quintain.sandbox.channel import Channel
from quintain.sandbox.command import Capture, Feed, Report
from quintain.sandbox.server import SpawnServer
from quintain.sandbox.session import ShellSession
from quintain.task import SandboxSpec

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""How much longer than a command's limit its minder may take to report."""
CLOSE_S = 20.0
ANY_NUMBER, ANY_IDS = 99_999_998, (2_147_483_120, 2_147_483_121)
"""Stand for a sandbox's own number and host ids in the plan of its kind; as long as those."""
MANY_FILES = 65_536
INLINE_BYTES = 1 << 20
"""Longer files are read and written in a thread."""

Killed = Literal["", "timeout", "memory", "pids", "output"]


class NativeSandbox:
    """An open sandbox of `NativeBackend`."""

    capabilities: frozenset[str] = frozenset({"session"})

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

    async def start(self, plan: bytes) -> None:
        """Brings it up; called by the backend only."""
        with self._theirs:
            self._gone = self._server.open(self._number, plan, self._theirs.fileno())
        self._gone.add_done_callback(self._on_gone)
        async with asyncio.timeout(self.spec.startup_s):
            await self._up

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

    async def close(self) -> None:
        """Ends every process and removes everything; may be called twice."""
        if not self._closed:
            self._closed = True
            self._lose("it was closed")
            self._server.end(self._number)
            self._channel.close()
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


class NativeBackend:
    """Opens native sandboxes.

    Args:
        allow_weaker: go on where a limit cannot be enforced, instead of refusing by name.
        launcher: "c" (needs a C compiler once), "python", or "auto": C where it can be compiled.
    """

    name = "native"

    def __init__(
        self, *, allow_weaker: bool = False, launcher: Literal["auto", "c", "python"] = "auto"
    ) -> None:
        self.allow_weaker = allow_weaker
        self.launcher = launcher
        self._host: host.Host | None = None
        self._servers: dict[asyncio.AbstractEventLoop, SpawnServer] = {}
        self._starting = asyncio.Lock()
        self._numbers = 0

    async def open(self, spec: SandboxSpec) -> NativeSandbox:
        """A fresh sandbox; see `quintain.protocols.SandboxBackend.open`."""
        here = self._look()
        _refuse_unbuilt(spec)
        missing = self._missing(here, spec)
        if missing and not self.allow_weaker:
            listed = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise IsolationError(
                f"this host cannot enforce {listed}. "
                "Run as root or with delegated control groups, use a container backend, "
                "or accept it with allow_weaker=True (--allow-weaker)",
                tuple(missing),
            )
        server = await self._server(here)
        self._numbers += 1
        number = self._numbers
        ids = self._ids(here, number)
        plan = self._plan(here, server, spec, ids, number)
        sandbox = NativeSandbox(spec, number, server, ids.inside(spec), missing)
        try:
            await sandbox.start(plan)
        except TimeoutError as error:
            await sandbox.close()
            raise SandboxTimeout(f"the sandbox was not up within {spec.startup_s} s") from error
        except SandboxError:
            await sandbox.close()
            raise
        except OSError as error:
            await sandbox.close()
            raise _explain(error, here) from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def probe(self) -> Probe:
        """Opens a sandbox and attacks it; says what holds, and what to do about the rest."""
        here = self._host or host.look()
        missing = {} if here.blocked else self._missing(here, probe.SPEC)
        advice = here.advice
        if missing and not advice:
            advice = (
                "run as root, or under a service manager that delegates control groups "
                "(systemd-run --user --scope -p Delegate=yes), or go on with --allow-weaker"
            )
        weaker = NativeBackend(allow_weaker=True, launcher=self.launcher)
        try:
            program = [] if here.blocked else await asyncio.to_thread(self._program)
            details = {
                "launcher": "python" if "-m" in program else "c" if program else "",
                "user": "ordinary" if here.rootless else "root",
                "control_groups": here.groups.version,
            }
            return await probe.probe(weaker, missing, advice, details)
        finally:
            await weaker.close()

    async def close(self) -> None:
        """Ends every sandbox of this backend and its spawn servers."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await self._bury(server, self._look())

    def _look(self) -> host.Host:
        if self._host is None:
            self._host = host.look()
        if self._host.blocked:
            advice = f" Try: {self._host.advice}." if self._host.advice else ""
            raise IsolationError(
                f"no native sandbox here: {self._host.blocked}.{advice}", ("namespaces",)
            )
        return self._host

    def _missing(self, here: host.Host, spec: SandboxSpec) -> dict[str, str]:
        missing = {
            {"cpu": "cpus"}.get(name, name): why for name, why in here.groups.missing.items()
        }
        if here.rootless:
            missing.pop("pids", None)
        if spec.isolation in ("gvisor", "microvm"):
            missing[spec.isolation] = "the native backend isolates by namespaces"
        return missing

    def _plan(
        self, here: host.Host, server: SpawnServer, spec: SandboxSpec, ids: layout.Ids, number: int
    ) -> bytes:
        """The plan of one sandbox: that of its kind, which is kept, with its own numbers put in."""
        kind = (spec.image, spec.memory_mb, spec.disk_mb, spec.max_pids, spec.cpus, spec.user,
                spec.workdir)  # fmt: skip
        found = server.plans.get(kind)
        if found is None:
            any_ids = ids if ids.rootless else layout.Ids(False, *ANY_IDS)
            plan = wire.Plan()
            cgroups.limit(plan, here.groups, server.name, ANY_NUMBER, spec, layout.HOST)
            grouped = "memory" in here.groups.folders
            layout.box_plan(plan, spec, any_ids, grouped=grouped)
            found = bytes(plan.data)
            if spec.image is None:
                server.plans[kind] = found
        found = found.replace(f"/{ANY_NUMBER:08d}".encode(), f"/{number:08d}".encode())
        for any_id, own in zip(ANY_IDS, (ids.init, ids.user), strict=True):
            if ids.rootless:
                break
            found = found.replace(str(any_id).encode(), str(own).encode())
            found = found.replace(any_id.to_bytes(4, "little"), own.to_bytes(4, "little"))
        return found

    def _ids(self, here: host.Host, number: int) -> layout.Ids:
        if here.rootless:
            return layout.Ids(True, 0, 0)
        first = 0x70000000 + (os.getpid() % 32768) * 8192 + (number % 4096) * 2
        return layout.Ids(False, first, first + 1)

    async def _server(self, here: host.Host) -> SpawnServer:
        loop = asyncio.get_running_loop()
        async with self._starting:
            server = self._servers.get(loop)
            if server is not None and server.alive():
                return server
            if server is not None:
                await self._bury(self._servers.pop(loop), here)
            for other in [loop for loop in self._servers if loop.is_closed()]:
                self._servers.pop(other).hang_up()
            name = f"{cgroups.owner_name()}.{id(self):x}.{self._numbers}"
            await asyncio.to_thread(cgroups.sweep, here.groups)
            plan = layout.stage_plan(rootless=here.rootless)
            cgroups.stage(plan, here.groups, name, layout.HOST)
            _allow_many_files()
            argv = await asyncio.to_thread(self._program)
            path = os.pathsep.join(entry for entry in sys.path if entry)
            try:
                server = await SpawnServer.start(argv, plan, {"PYTHONPATH": path})
            except SandboxError:
                raise
            except OSError as error:
                raise _explain(error, here) from error
            server.name = name
            self._servers[loop] = server
            return server

    async def _bury(self, server: SpawnServer, here: host.Host) -> None:
        await server.close()
        await asyncio.to_thread(cgroups.remove, here.groups, server.name)

    def _program(self) -> list[str]:
        found = build.helper() if self.launcher != "python" else None
        if found is not None:
            return [str(found)]
        if self.launcher == "c":
            raise IsolationError(
                "launcher='c' was asked for, and the helper cannot be compiled here: install a C "
                "compiler, or use launcher='auto'",
                ("c launcher",),
            )
        return [sys.executable, "-m", "quintain.sandbox.launcher"]


def _allow_many_files() -> None:
    """Every open sandbox and every running command takes a few descriptors of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse_unbuilt(spec: SandboxSpec) -> None:
    asked = [name for name in ("packages", "apt", "setup", "dockerfile") if getattr(spec, name)]
    if spec.network.mode != "none":
        asked.append(f"network mode {spec.network.mode!r}")
    if spec.user not in ("sandbox", "root"):
        asked.append(f"user {spec.user!r} (it knows 'sandbox' and 'root')")
    if spec.image is not None and not os.path.isdir(spec.image):
        raise ConfigError(
            f"image {spec.image!r}: expected a directory with a root file system, found none"
        )
    if asked:
        raise CapabilityError(
            f"the native sandbox cannot do this yet: {', '.join(asked)}. "
            "Give a prepared root file system as `image`, or drop it from the spec"
        )


def _explain(error: OSError, here: host.Host) -> SandboxError:
    what = f"{error.strerror} ({os.strerror(error.errno or 0)})"
    if error.errno in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOSYS):
        advice = here.advice or "run as root on a host (not in a container without privileges)"
        return IsolationError(
            f"this host refused a wall of the native sandbox: {what}. Try: {advice}; "
            "or use a container backend",
            ("namespaces",),
        )
    return SandboxError(f"the sandbox did not come up: {what}")
