"""The tests' side: pytest, and stubs in the place of the solution; sent into a sandbox as text.

No code of the candidate is in this sandbox (form `apart`). A stub asks the other side through the
socket in `LINK` and builds what comes back itself. In the other form (`together`) the solution is
imported here, and what the stubs protect is only guarded, see `room_guard`.
"""

from __future__ import annotations

import builtins
import importlib.util
import json
import socket
import struct
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain.verifiers.projects.room_values import NotPlain, decode, encode, from_line, to_line
else:
    from room_values import NotPlain, decode, encode, from_line, to_line

SIZE = struct.Struct(">I")


class SolutionError(BaseException):
    """The solution's process is gone, or it answered with something that is no answer.

    Not an `Exception`: a test that expects some error must not take it for one.
    """


class Link:
    """The way to the solution's process: one request at a time.

    Args:
        sock: connected to who carries requests over.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.broken = ""

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message."""
        data = json.dumps(message).encode()
        self.sock.sendall(SIZE.pack(len(data)) + data)

    def receive(self) -> dict[str, Any]:
        """The next message."""
        (size,) = SIZE.unpack(self.exactly(SIZE.size))
        found: dict[str, Any] = json.loads(self.exactly(size))
        return found

    def exactly(self, size: int) -> bytes:
        """So many bytes."""
        data = bytearray()
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise EOFError("the other end of the link is gone")
            data += chunk
        return bytes(data)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the solution says to a request."""
        if self.broken:
            raise SolutionError(self.broken)
        self.send({"ask": to_line(request)})
        reply = self.receive()
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            if reply.get(name):
                stream.write(reply[name])
        if reply.get("broken"):
            self.broken = str(reply["broken"])
            raise SolutionError(self.broken)
        try:
            said = from_line(reply["line"])
        except (ValueError, RecursionError) as error:
            raise SolutionError(f"an answer that cannot be read: {error}") from None
        if type(said) is not dict:
            raise SolutionError("an answer that cannot be read")
        return said


LINK: Link
CLASSES: dict[str, Any] = {}
"""`module:name` to the stub class."""


class Iterating:
    """An iterator on the other side; what it gives is plain, or of the classes of `result`."""

    def __init__(self, number: int, result: dict[str, Any]) -> None:
        self._number, self._result = number, result

    def __iter__(self) -> Iterating:
        return self

    def __next__(self) -> Any:
        return call({"object": self._number, "path": ["__next__"]}, (), {}, self._result)


def refuse(value: Any) -> Any:
    """For arguments that are neither plain nor of a declared class."""
    number = getattr(type(value), "_quintain_number", None)
    if number is not None:
        return {"o": [number(value), ""]}
    raise NotPlain(
        f"a {type(value).__name__} cannot be handed to a solution that runs apart; declare the "
        'form "together" for such tests'
    )


def receive(value: Any, result: dict[str, Any]) -> Any:
    """A decoded answer; objects only of the classes that the stub allows."""

    def other(inside: Any) -> Any:
        if type(inside) is not list or len(inside) != 2 or type(inside[0]) is not int:
            raise NotPlain("a malformed value")
        number, kind = inside
        if kind == "iterator" and result["iterator"]:
            return Iterating(number, result)
        if kind in result["results"] and kind in CLASSES:
            return CLASSES[kind]._quintain_make(number)
        raise NotPlain("the result is an object where plain data is declared")

    try:
        return decode(value, other)
    except NotPlain as error:
        raise SolutionError(str(error)) from None
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise SolutionError(f"an answer that cannot be read: {error}") from None


def raised(said: dict[str, Any], result: dict[str, Any]) -> BaseException:
    """The exception that the solution raised, as a built-in or declared one."""
    text = str(said.get("text", ""))
    try:
        arguments = [receive(item, {"results": [], "iterator": False}) for item in said["args"]]
    except (SolutionError, KeyError, TypeError):
        arguments = [text]
    for name in said["raised"] if type(said["raised"]) is list else ():
        module, _, last = str(name).partition(":")
        kind = CLASSES.get(name) if module != "builtins" else getattr(builtins, last, None)
        if not isinstance(kind, type) or not issubclass(kind, Exception | SystemExit):
            continue
        for given in (arguments, [text]):
            try:
                return kind(*given)
            except Exception:
                continue
    return SolutionError(f"the solution raised {said['raised']!r}: {text}"[:2000])


def call(target: dict[str, Any], given: Any, named: Any, result: dict[str, Any]) -> Any:
    """Calls something on the other side."""
    arguments = [encode(item, refuse) for item in given]
    request = {
        **target,
        "do": "call",
        "args": arguments,
        "named": {name: encode(item, refuse) for name, item in named.items()},
    }
    said = LINK.ask(request)
    if "raised" in said:
        raise raised(said, result)
    for number, now in said.get("changed") or ():
        put_back(given[number], receive(now, result))
    return receive(said.get("value"), result)


def put_back(mine: Any, now: Any) -> None:
    """Changes an argument as the call did; of its own exact type only."""
    if type(mine) is not type(now) or type(now) not in (list, dict, set, bytearray):
        raise SolutionError("an argument changed its type")
    if type(mine) in (list, bytearray):
        mine[:] = now
    else:
        mine.clear()
        mine.update(now)


def get(target: dict[str, Any], result: dict[str, Any]) -> Any:
    """The value of an attribute on the other side."""
    said = LINK.ask({**target, "do": "get"})
    if "raised" in said:
        raise raised(said, result)
    return receive(said.get("value"), result)


# --- stubs ---


def function_stub(target: dict[str, Any], name: str, result: dict[str, Any]) -> Any:
    """A function that calls its namesake."""
    if result["async"]:

        async def waiting(*given: Any, **named: Any) -> Any:
            return call(target, given, named, result)

        waiting.__name__ = waiting.__qualname__ = name
        return waiting

    def stub(*given: Any, **named: Any) -> Any:
        return call(target, given, named, result)

    stub.__name__ = stub.__qualname__ = name
    return stub


def method_stub(name: str, result: dict[str, Any]) -> Any:
    """A method that calls its namesake on the object that a number stands for."""

    def target(self: Any) -> dict[str, Any]:
        return {"object": self._quintain, "path": [name]}

    if result["async"]:

        async def waiting(self: Any, *given: Any, **named: Any) -> Any:
            return call(target(self), given, named, result)

        return waiting

    def stub(self: Any, *given: Any, **named: Any) -> Any:
        return call(target(self), given, named, result)

    stub.__name__ = name
    return stub


def value_stub(name: str, result: dict[str, Any]) -> property:
    """An attribute that is asked for, and set, on the other side."""

    def read(self: Any) -> Any:
        return get({"object": self._quintain, "path": [name]}, result)

    def write(self: Any, value: Any) -> None:
        packed = encode(value, refuse)
        said = LINK.ask(
            {"object": self._quintain, "path": [], "do": "set", "name": name, "value": packed}
        )
        if "raised" in said:
            raise raised(said, result)

    return property(read, write)


def class_stub(module: str, name: str, table: dict[str, Any], bases: tuple[type, ...]) -> type:
    """A class whose objects are on the other side."""
    where = f"{module}:{name}"
    space: dict[str, Any] = {"__module__": module}
    for method, result in table["methods"].items():
        if method == "__init__":
            continue
        if result["of_class"]:
            target = {"module": module, "path": [name, method]}
            space[method] = staticmethod(function_stub(target, method, result))
        else:
            space[method] = method_stub(method, result)
    for value, result in table["values"].items():
        space[value] = value_stub(value, result)
    if table["exception"]:
        return type(name, (*bases, getattr(builtins, table["exception"])), space)
    if any(issubclass(base, BaseException) for base in bases):
        return type(name, bases, space)

    def make(cls: Any, *given: Any, **named: Any) -> Any:
        target = {"module": module, "path": [cls.__name__]}
        allowed = {"results": [where], "iterator": False}
        return call(target, given, named, allowed)

    def wrap(number: int) -> Any:
        made = object.__new__(CLASSES[where])
        made._quintain = number
        return made

    space["__new__"] = make
    space["_quintain_make"] = staticmethod(wrap)
    space["_quintain_number"] = staticmethod(lambda value: value._quintain)
    if "__eq__" in space and "__hash__" not in space:
        space["__hash__"] = None
    return type(name, bases or (object,), space)


class StubModule(ModuleType):
    """A declared module; its values are asked for every time."""

    def __getattr__(self, name: str) -> Any:
        result = self.__dict__.get("_quintain_values", {}).get(name)
        if result is None:
            raise AttributeError(f"module {self.__name__!r} declares no {name!r}")
        return get({"module": self.__name__, "path": [name]}, result)


def stub_modules(interface: dict[str, Any]) -> dict[str, ModuleType]:
    """Every declared module, and the packages that they stand in."""
    modules: dict[str, ModuleType] = {}
    left = {
        f"{module}:{name}": table
        for module, tables in interface.items()
        for name, table in tables["classes"].items()
    }
    while left:
        ready = [
            where
            for where, table in left.items()
            if all(base in CLASSES or base == where for base in table["bases"])
        ]
        if not ready:
            raise ValueError(f"bases of {', '.join(left)} depend on each other")
        for where in ready:
            module, _, name = where.partition(":")
            table = left.pop(where)
            bases = tuple(CLASSES[base] for base in table["bases"])
            CLASSES[where] = class_stub(module, name, table, bases)
    for name, tables in interface.items():
        made = StubModule(name)
        made.__dict__["_quintain_values"] = tables["values"]
        for function, result in tables["functions"].items():
            target = {"module": name, "path": [function]}
            setattr(made, function, function_stub(target, function, result))
        for kind in tables["classes"]:
            setattr(made, kind, CLASSES[f"{name}:{kind}"])
        modules[name] = made
    return modules


class Finder:
    """Finds the declared modules before anything else does.

    Args:
        modules: name to stub.
    """

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self.modules = modules
        self.packages: set[str] = set()
        for name in modules:
            while name := name.rpartition(".")[0]:
                self.packages.add(name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a stub, or of a package that holds one and is not there itself."""
        if name not in self.modules and name not in self.packages:
            return None
        if name not in self.modules:
            for finder in sys.meta_path:
                found = None if finder is self else finder.find_spec(name, path, target)
                if found is not None:
                    return found
        loader: Any = self
        return importlib.util.spec_from_loader(name, loader, is_package=name in self.packages)

    def create_module(self, spec: Any) -> ModuleType:
        """The stub, or an empty package."""
        return self.modules.get(spec.name) or ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do."""


# --- pytest ---


class Reports:
    """Everything that pytest says of tests, as data; a plug-in."""

    def __init__(self) -> None:
        self.collected: list[str] = []
        self.reports: list[dict[str, Any]] = []
        self.problems: list[str] = []

    def pytest_collection_finish(self, session: Any) -> None:
        """Which tests there are."""
        self.collected = [item.nodeid for item in session.items]

    def pytest_collectreport(self, report: Any) -> None:
        """What could not be collected."""
        if report.outcome != "passed":
            self.problems.append(
                f"{report.nodeid}: {report.outcome}: {report.longreprtext}"[-1500:]
            )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test."""
        self.reports.append(
            {
                "id": report.nodeid,
                "when": report.when,
                "outcome": report.outcome,
                "xfail": hasattr(report, "wasxfail"),
                "text": str(report.longreprtext)[-800:],
            }
        )

    def pytest_internalerror(self, excrepr: Any) -> None:
        """A fault of pytest or of a trusted file."""
        self.problems.append(f"internal error: {excrepr}"[-1500:])

    def told(self) -> dict[str, Any]:
        """All of it."""
        return {
            "collected": self.collected,
            "reports": self.reports,
            "problems": self.problems[:20],
        }


def pytest_arguments(job: dict[str, Any]) -> list[str]:
    """What pytest is told; nothing comes from the environment or a file of the candidate."""
    out = ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--color=no", "--tb=short"]
    out += ["--rootdir", job["root"], "-c", job["config"], "--override-ini", "junit_logging=no"]
    for plugin in job["plugins"]:
        out += ["-p", plugin]
    return [*out, "--", *job["tests"]]


def run(job: dict[str, Any], sock: socket.socket) -> None:
    """Runs the tests against stubs and sends the reports."""
    global LINK
    LINK = Link(sock)
    sys.path[:0] = job["paths"]
    sys.meta_path.insert(0, Finder(stub_modules(job["interface"])))
    import pytest

    reports = Reports()
    pytest.main(pytest_arguments(job), plugins=[reports])
    LINK.send({"end": reports.told()})
