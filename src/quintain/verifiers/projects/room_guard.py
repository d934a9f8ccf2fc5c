"""Form `together`: one file of tests, run in a process that also holds the candidate's code.

The watcher (`main`) forks that process, waits for its end and ends what it left running; what it
reported comes through a pipe with a word that only the plug-in was told. In the process the
plug-in remembers what a test relies on before the candidate's code is imported, looks again
afterwards, and slips in tests that must fail. All this makes forging harder and not impossible:
code in the same process can do whatever the plug-in can.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain.verifiers.projects import room_tests, room_values
else:
    import room_tests
    import room_values

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
WATCHED = (
    "builtins",
    "time",
    "operator",
    "unittest",
    "pluggy",
    "_pytest",
    "pytest",
    "room_tests",
    "room_values",
)
OWN_CHANGES = {"_pytest.config.Config._getini_unknown_type"}
"""What pytest itself changes when it starts."""
MAX_REPORT = 16_000_000


def standing() -> Iterator[tuple[str, Any]]:
    """What tests and their reporting rely on: name and identity of functions, methods and code."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in WATCHED and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType):
                    yield f"{name}.{key}", (value, value.__code__)
                elif isinstance(value, type) and value.__module__ == name:
                    for method, found in list(vars(value).items()):
                        if isinstance(found, FunctionType):
                            yield f"{name}.{key}.{method}", (found, found.__code__)
                elif callable(value):
                    yield f"{name}.{key}", value
    yield "sys.settrace", sys.gettrace()
    yield "sys.setprofile", sys.getprofile()


def changed(before: dict[str, Any]) -> list[str]:
    """Names of what is not what it was."""
    now = dict(standing())
    return [
        name
        for name, value in before.items()
        if name not in OWN_CHANGES and not same(value, now.get(name))
    ]


def same(one: Any, other: Any) -> bool:
    """Whether two values, or two pairs of them, are identical."""
    if type(one) is tuple and type(other) is tuple:
        return all(map(same, one, other))
    return one is other


def unequal() -> None:
    """Fails by an assertion."""
    one, other = object(), object()
    assert one is other, "a test that must fail"


def raises() -> None:
    """Fails by an exception."""
    raise LookupError("a test that must fail")


class Guarded(room_tests.Reports):
    """Reports, with tests that must fail between the others; a plug-in.

    Args:
        canaries: names of those tests.
        interface: of the solution, parsed; may be empty.
        tests: path of the file of tests to its text, which is on disk only while it is collected.
    """

    def __init__(
        self, canaries: list[str], interface: dict[str, Any], tests: dict[str, str]
    ) -> None:
        super().__init__()
        self.canaries = canaries
        self.interface = interface
        self.tests = tests
        self.before = dict(standing())

    def pytest_collection(self) -> None:
        """Before tests are imported: what declared functions return is rebuilt as plain data."""
        for name, table in self.interface.items():
            try:
                exec(f"import {name}", {})
            except BaseException as error:
                self.problems.append(f"{name}: {type(error).__name__}: {error}"[:1500])
                return
            for function, result in table["functions"].items():
                known = getattr(sys.modules[name], function, None)
                objects = result["results"] or result["iterator"] or result["async"]
                if callable(known) and not objects:
                    setattr(sys.modules[name], function, plain(known))
        for path, text in self.tests.items():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        self.tests = dict.fromkeys(self.tests, "")

    def pytest_collection_modifyitems(self, session: Any, config: Any, items: list[Any]) -> None:
        """Puts the canaries first, last and in between; the candidate's code is imported by now."""
        import pytest

        self.look()
        for path in self.tests:
            os.unlink(path)
        if not items:
            return
        module = items[0].getparent(pytest.Module)
        ways: tuple[Callable[[], None], ...] = (unequal, raises)
        for number, name in enumerate(self.canaries):
            place = len(items) * number // max(1, len(self.canaries) - 1)
            body = ways[number % len(ways)]
            made = pytest.Function.from_parent(module, name=name, callobj=body)
            items.insert(min(place, len(items)), made)

    def look(self) -> None:
        """Notes what was changed."""
        found = changed(self.before)
        if found:
            self.problems.append(f"changed under the tests: {', '.join(found[:10])}")


def run(job: dict[str, Any], fd: int) -> None:
    """In the child: runs pytest and reports."""
    sys.path[:0] = job["paths"]
    # All that will be watched is imported first.
    import unittest.mock  # noqa: F401

    import _pytest.assertion.rewrite
    import _pytest.unittest  # noqa: F401
    import pytest

    write, dumps = os.write, json.dumps
    reports = Guarded(job["canaries"], job["interface"], job.pop("texts"))
    pytest.main(room_tests.pytest_arguments(job), plugins=[reports])
    reports.look()
    data = memoryview(dumps({"word": job["word"], "told": reports.told()}).encode())
    while data:
        data = data[write(fd, data) :]
    os.close(fd)
    os._exit(0)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with results of exact types: none that says it equals everything."""

    def refuse(value: Any) -> Any:
        raise room_tests.SolutionError("the result is an object where plain data is declared")

    @functools.wraps(function)
    def wrapped(*given: Any, **named: Any) -> Any:
        return room_values.decode(room_values.encode(function(*given, **named), refuse), refuse)

    return wrapped


def descendants() -> list[int]:
    """Every process below this one."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{entry}/stat", "rb") as file,
            ):
                parents[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
    known: set[int] = {os.getpid()}
    found: list[int] = []
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        found += more
        known |= more
    return found


def end_all(until: float) -> None:
    """Ends what is left running."""
    while time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = descendants()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    """Runs the job on standard input; the last line of output is what came of it."""
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = os.pipe()
    out = os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            os.close(out)
            for place in range(3):
                os.dup2(null, place)
            seconds = int(job["cpu_s"]) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            run(job, theirs)
        finally:
            os._exit(1)
    # Its memory and descriptors in /proc are closed to the candidate's processes from here on.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.close(theirs)
    data, why = read_all(ours, time.monotonic() + job["wall_s"])
    ended, status = wait(pid, time.monotonic() + 2.0)
    end_all(time.monotonic() + 5.0)
    code = os.waitstatus_to_exitcode(status) if ended else None
    write_all(out, json.dumps({"report": data.decode("latin-1"), "why": why, "code": code}))


def wait(pid: int, until: float) -> tuple[int, int]:
    """The end of the process, if it comes in time."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > until:
            return ended, status
        time.sleep(0.005)


def write_all(fd: int, text: str) -> None:
    """Writes a line."""
    data = memoryview(text.encode() + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def read_all(fd: int, until: float) -> tuple[bytes, str]:
    """Everything that was reported; and what was wrong with it."""
    data = b""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return data, "late"
        if not select.select([fd], [], [], left)[0]:
            continue
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            return data, ""
        data += chunk
        if len(data) > MAX_REPORT:
            return b"", "flooded"
