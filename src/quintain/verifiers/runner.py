"""The script that runs a candidate's code inside its clean room, one forked process per case.

It is sent into the sandbox as text (`python3 -I -c …`) and imports nothing of this package. It
knows the code and one input at a time: the next input stays unread in its own standard input until
the processes of the last case are gone and what they wrote is wiped. Expected values never get
here. A case runs in a forked child that holds none of the runner's descriptors; its answer is
whatever bytes it leaves in a memory file, and the judge outside decides what they are worth. So a
candidate that kills, stops or imitates the runner only loses its answers.

In, on standard input: frames of a length (4 bytes, big-endian) and bytes: first a JSON object
`mode, code, entry_point, cpu_s, wall_s, max_bytes, total_bytes`, then one frame a case. Out, on
standard output: a frame `ready`, then for each case a frame of status, exit code, CPU and wall
seconds, and the answer. After a case without an answer no other is run; once much has been sent,
`PAUSED` stands in place of the next answer.

What a child would touch first is made before the fork: every page that it writes is copied.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import signal
import stat
import struct
import sys
import threading
import time
import types
from typing import Any

HEAD = struct.Struct(">Bidd")
ANSWERED, RAISED, EXITED, LATE, CPU, FLOODED, STUCK, PAUSED = range(8)
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
SWEEP_S = 2.0
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/run/shm")


def read_exactly(size: int) -> bytes | None:
    """So many bytes of standard input and not one more; None at its end."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def read_frame() -> bytes | None:
    """The next frame of standard input."""
    head = read_exactly(4)
    return None if head is None else read_exactly(int.from_bytes(head, "big"))


def write_frame(data: bytes) -> None:
    """Writes a frame to standard output."""
    write_all(1, len(data).to_bytes(4, "big") + data)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def memory_file(content: bytes = b"") -> int:
    """A descriptor of an unnamed file with this content, at its begin."""
    try:
        fd = os.memfd_create("case")
    except (AttributeError, OSError):
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    write_all(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


# --- in the child: one case ---


def to_plain(value: Any, depth: int = 0) -> Any:
    """Plain data as JSON with tagged types; anything else is no answer."""
    if depth > 200:
        raise TypeError("the result is nested too deeply")
    kinds = type(value).__mro__
    if value is None or type(value) is bool:
        return value
    if int in kinds:
        number = int.__int__(value)
        return number if -(2**53) < number < 2**53 else {"i": hex(number)}
    if float in kinds:
        return {"f": float.hex(float.__float__(value))}
    if str in kinds:
        return str.__str__(value)
    if list in kinds:
        return [to_plain(item, depth + 1) for item in list.__iter__(value)]
    if tuple in kinds:
        return {"t": [to_plain(item, depth + 1) for item in tuple.__iter__(value)]}
    if dict in kinds:
        pairs = dict.items(value)
        return {"d": [[to_plain(k, depth + 1), to_plain(v, depth + 1)] for k, v in pairs]}
    if set in kinds:
        return {"s": [to_plain(item, depth + 1) for item in set.__iter__(value)]}
    if frozenset in kinds:
        return {"s": [to_plain(item, depth + 1) for item in frozenset.__iter__(value)]}
    if bytes in kinds or bytearray in kinds:
        return {"b": bytes(value).hex()}
    if complex in kinds:
        return {"c": [float.hex(value.real), float.hex(value.imag)]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return to_plain(value.tolist(), depth + 1)
    raise TypeError("the result is a " + type(value).__name__ + ", not plain data")


def from_plain(value: Any) -> Any:
    """The value behind tagged JSON."""
    if type(value) is list:
        return [from_plain(item) for item in value]
    if type(value) is dict:
        ((tag, inside),) = value.items()
        return UNTAG[tag](inside)
    return value


UNTAG: dict[str, Any] = {
    "i": lambda inside: int(inside, 16),
    "f": float.fromhex,
    "t": lambda inside: tuple(map(from_plain, inside)),
    "d": lambda inside: {from_plain(key): from_plain(value) for key, value in inside},
    "s": lambda inside: set(map(from_plain, inside)),
    "b": bytes.fromhex,
    "c": lambda inside: complex(*map(float.fromhex, inside)),
}


def find_entry(module: types.ModuleType, name: str) -> Any:
    """The function, or the method of that name of a class `Solution`."""
    found = getattr(module, name, None)
    if found is None and isinstance(getattr(module, "Solution", None), type):
        found = getattr(module.Solution(), name, None)
    if not callable(found):
        raise NameError("the code defines no function " + repr(name))
    return found


# Over the descriptors, not what they are now: the child puts its own there.
STREAMS = (
    io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8"),
    io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False), 1 << 16), "utf-8"),
    io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False), 1 << 13),
        "utf-8",
        "backslashreplace",
        line_buffering=True,
    ),
)
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def call_function(job: dict[str, Any], code: Any, case: Any, answer_fd: int) -> None:
    """Imports the code freshly, calls the function, leaves the answer."""
    dumps, write = ENCODE, write_all
    module = types.ModuleType("solution")
    module.__file__ = "solution.py"
    sys.modules["solution"] = module
    exec(code, module.__dict__)
    result = find_entry(module, job["entry_point"])(*from_plain(case))
    if type(result) is types.CoroutineType:
        import asyncio

        result = asyncio.run(result)
    write(answer_fd, dumps(to_plain(result)).encode("utf-8", "surrogatepass"))


def run_program(code: Any) -> None:
    """Runs the code as a main program, from its standard input to its standard output."""
    module = types.ModuleType("__main__")
    module.__file__ = "main.py"
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def compiled(job: dict[str, Any]) -> Any:
    """The code object of the candidate's source."""
    name = "solution.py" if job["mode"] == "function" else "main.py"
    return compile(job["code"], name, "exec", dont_inherit=True)


def finish() -> int:
    """What an interpreter does at its end, without taking itself apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            return 120
    return 0


def child(job: dict[str, Any], code: Any, case: Any, fds: tuple[int, int, int, int]) -> None:
    """Runs one case and exits: no descriptor of the runner is left open here."""
    input_fd, output_fd, error_fd, answer_fd = fds
    for place, fd in enumerate((input_fd, output_fd, error_fd)):
        os.dup2(fd, place)
    os.dup2(answer_fd, 3)
    os.closerange(4, 256)
    os.setpgid(0, 0)
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    seconds = int(job["cpu_s"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (job["max_bytes"], job["max_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdin, sys.stdout, sys.stderr = STREAMS
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    sys.argv = ["main.py"]
    function = job["mode"] == "function"
    status = 0
    try:
        code = code or compiled(job)
        if function:
            call_function(job, code, case, 3)
        else:
            os.close(3)
            run_program(code)
    except SystemExit as end:
        if end.code is None or function:
            status = 3 if function else 0
        elif type(end.code) is int:
            status = end.code & 255
        else:
            print(end.code, file=sys.stderr)
            status = 1
    except MemoryError:
        os._exit(77)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    if function and status == 0:
        os._exit(0)
    status = status or finish()
    if status:
        finish()
    os._exit(status)


# --- in the runner ---


class Runner:
    """Forks, watches, ends and cleans up after the cases.

    Args:
        job: the first frame.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.tty = os.open("/dev/null", os.O_RDWR)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        libc = ctypes.CDLL(None)
        # Its memory, descriptors and status in /proc are then closed to the candidate's user.
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        # What a case leaves behind becomes a child of the runner, which ends it.
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Code that does not compile fails in the child, where its message is heard.
        self.code = None
        with contextlib.suppress(Exception):
            self.code = compiled(job)
        self.places = [place for place in {os.getcwd(), os.environ.get("HOME", "/"), *SHARED}]
        self.places = [place for place in self.places if os.access(place, os.W_OK)]
        self.kept = {place: set(os.listdir(place)) for place in self.places}

    def run(self, case: bytes) -> tuple[int, int, float, float, bytes]:
        """Status, exit code, CPU and wall seconds, and answer of one case."""
        function = self.job["mode"] == "function"
        value = json.loads(case) if function else None
        stdin = self.tty if function else memory_file(case)
        stdout = self.tty if function else memory_file()
        stderr = memory_file()
        answer = memory_file() if function else stdout
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                child(self.job, self.code, value, (stdin, stdout, stderr, answer))
            finally:
                os._exit(1)
        code, usage = self.wait(pid, began + self.job["wall_s"])
        wall = time.monotonic() - began
        swept = self.sweep()
        cpu = usage.ru_utime + usage.ru_stime if usage else 0.0
        limit = self.job["max_bytes"]
        size = os.fstat(answer).st_size
        if code is None:
            status = LATE
        elif code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu >= self.job["cpu_s"]:
            status = CPU
        elif size >= limit or code == -signal.SIGXFSZ:
            status = FLOODED
        elif code != 0:
            status = RAISED if code > 0 else EXITED
        elif function and size == 0:
            status = EXITED
        else:
            status = ANSWERED if swept else STUCK
        if status == ANSWERED:
            data = self.content(answer, limit, end=False)
        else:
            data = self.content(stderr, 2000, end=True)
        for fd in {stdin, stdout, stderr, answer} - {self.tty}:
            os.close(fd)
        self.wipe()
        return status, code if code is not None else -9, cpu, wall, data

    def content(self, fd: int, most: int, *, end: bool) -> bytes:
        """The first or the last bytes of a file."""
        size = os.fstat(fd).st_size
        start = max(0, size - most) if end else 0
        data = b""
        while start + len(data) < size and len(data) < most:
            chunk = os.pread(fd, min(1 << 20, most - len(data)), start + len(data))
            if not chunk:
                break
            data += chunk
        return data

    def wait(self, pid: int, until: float) -> tuple[int | None, Any]:
        """The exit code by the deadline, else None after killing it."""
        while True:
            done, raw, usage = os.wait4(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(raw), usage
            left = until - time.monotonic()
            if left <= 0:
                os.kill(pid, signal.SIGKILL)
                _, _, usage = os.wait4(pid, 0)
                return None, usage
            # Orphans end too: anybody's end wakes it, and only this child's counts.
            signal.sigtimedwait({signal.SIGCHLD}, min(left, 0.5))

    def sweep(self) -> bool:
        """Ends what the case left running; whether nothing is left."""
        until = time.monotonic() + SWEEP_S
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return True
            if time.monotonic() > until:
                return False
            for pid in self.descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, 0.01)

    def descendants(self) -> list[int]:
        """Every process below the runner, whatever group or session it made for itself."""
        parents: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open("/proc/" + entry + "/stat", "rb") as file:
                        parents[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
                except (OSError, IndexError, ValueError):
                    continue
        found: list[int] = []
        known = {os.getpid()}
        while True:
            more = {pid for pid, parent in parents.items() if parent in known} - known
            if not more:
                return found
            found += more
            known |= more

    def wipe(self) -> None:
        """Removes what the case wrote where the next one could read it."""
        for place in self.places:
            for name in set(os.listdir(place)) - self.kept[place]:
                remove(os.path.join(place, name))


def remove(path: str) -> None:
    """Removes a file or a whole folder; what cannot be removed stays."""
    try:
        kind = os.lstat(path).st_mode
        if stat.S_ISDIR(kind):
            os.chmod(path, 0o700)
            for name in os.listdir(path):
                remove(os.path.join(path, name))
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return


def main() -> None:
    """Runs the cases as they come in."""
    job = json.loads(read_frame() or b"null")
    runner = Runner(job)
    # A collection in a child would touch, and so copy, every page of the runner.
    gc.disable()
    gc.freeze()
    write_frame(b"ready")
    sent = 0
    while (case := read_frame()) is not None:
        if sent > job["total_bytes"]:
            write_frame(HEAD.pack(PAUSED, 0, 0.0, 0.0))
            return
        status, code, cpu, wall, data = runner.run(case)
        write_frame(HEAD.pack(status, code, cpu, wall) + data)
        sent += len(data)
        if status != ANSWERED:
            return


if __name__ == "__main__":
    main()
