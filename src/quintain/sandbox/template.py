"""Runs inside: an interpreter with modules imported, from which sandboxes are forked.

Started as `python3 main.py LIBRARY MODULE…` in a view of its own of what sandboxes see, it needs
the standard library only. It imports, then hands control to `template_serve` of `box.c` (loaded
from LIBRARY), which forks sandboxes until the owner is gone; a Python command of such a sandbox
goes on in `_run`, in a process without rights. Nothing of any candidate ever reaches this process.
"""

import atexit
import ctypes
import gc
import os
import struct
import sys
import threading

OWNER = 3
"""Descriptor of the socket to the spawn server."""
FAILED = 9


def _tell(text: str) -> None:
    os.write(OWNER, struct.pack("<III", FAILED, 0, 22) + text.encode("utf-8", "replace")[:290])
    os._exit(1)


def _import(names: list[str]) -> None:
    for name in names:
        try:
            exec(f"import {name}", {})
        except BaseException as error:
            _tell(f"import {name}: {type(error).__name__}: {error}")
        if len(os.listdir("/proc/self/task")) > 1:
            _tell(f"import {name} starts threads, which no fork keeps")


def _strings(array: "ctypes._Pointer[ctypes.c_char_p]") -> list[str]:
    found: list[str] = []
    while array[len(found)] is not None:
        found.append(os.fsdecode(array[len(found)]))
    return found


def _run(argv: "ctypes._Pointer[ctypes.c_char_p]", env: "ctypes._Pointer[ctypes.c_char_p]") -> None:
    """The life of a forked interpreter: as `python3 -c` would go on; never returns."""
    status = 1
    try:
        # What fork in Python does around itself: locks, thread ids, random state.
        ctypes.pythonapi.PyOS_BeforeFork()
        ctypes.pythonapi.PyOS_AfterFork_Child()
        code, *arguments = _strings(argv)
        pairs = [item.partition("=")[::2] for item in _strings(env)]
        os.environ.clear()  # and with it what `env` points to
        os.environ.update(pairs)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        gc.enable()
        status = _execute(code, arguments)
    finally:
        os._exit(status)


def _execute(code: str, arguments: list[str]) -> int:
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), module.__dict__)
    except SystemExit as error:
        status = _status(error.code)
    except BaseException as error:
        status = 1
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    return max(status, _finish())


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _finish() -> int:
    """What an interpreter does at its end; 120 when its output is lost, as there."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    status = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            status = 120
    return status


def main() -> None:
    """Imports, and serves until the owner is gone."""
    library, *names = sys.argv[1:]
    sys.path.pop(0)  # the folder of this file
    _import(names)
    box = ctypes.PyDLL(library)  # calls keep the interpreter's lock: there is one thread
    run = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_char_p))(
        _run
    )
    gc.collect()
    gc.disable()
    gc.freeze()  # a collection in a fork would copy the pages of every object
    box.template_serve(run)


if __name__ == "__main__":
    main()
