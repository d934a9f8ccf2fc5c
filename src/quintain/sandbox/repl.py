"""The program of a persistent Python session; runs inside the sandbox, never in this process.

It is given to an interpreter as text (`interpreter.py`), reads one word a cell on descriptor 4,
the cell itself from 6, and answers on 5: a head, the last expression's `repr`, the traceback.
Only built-in modules are loaded before the first cell, since each import would delay it.
"""

from __future__ import annotations

import _ast
import builtins
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

WORDS, ANSWERS, CODE = 4, 5, 6
ONLY_AST = 0x400
SOURCES: dict[str, str] = {}
"""Cells so far, for the lines of tracebacks."""
MAX_SOURCES = 1000

busy = False


def interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ends the cell, and never the loop around it."""
    if busy:
        raise KeyboardInterrupt


def parts_of(source: str, name: str) -> tuple[CodeType, CodeType | None]:
    """The statements, and the last expression for its value."""
    tree = compile(source, name, "exec", ONLY_AST, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    code = compile(tree, name, "exec", dont_inherit=True)
    if last is None:
        return code, None
    return code, compile(_ast.Expression(last.value), name, "eval", dont_inherit=True)


def told(error: BaseException, source: str, name: str) -> str:
    """The traceback, without the frames of this program."""
    import linecache
    import traceback

    for known, text in SOURCES.items():
        linecache.cache[known] = (len(text), None, text.splitlines(True), known)
    trace = error.__traceback__
    own = told.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename == own:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def run(source: str, name: str, scope: dict[str, object]) -> tuple[str, str]:
    """The value's `repr` and the traceback, one of them empty."""
    global busy
    value = ""
    try:
        try:
            busy = True
            code, last = parts_of(source, name)
            exec(code, scope)
            if last is not None:
                found = eval(last, scope)
                if found is not None:
                    builtins._ = found  # type: ignore[attr-defined]
                    value = repr(found)
            busy = False
        except BaseException as error:
            busy = False
            return "", told(error, source, name)
    except KeyboardInterrupt:
        busy = False
        return "", "KeyboardInterrupt\n"
    return value, ""


def cut(data: bytes, limit: int) -> tuple[bytes, bool]:
    """The middle goes where it is too long."""
    if len(data) <= limit:
        return data, False
    mark = b"\n... %d bytes cut ...\n" % (len(data) - limit)
    return data[: limit // 2] + mark + data[len(data) - (limit - limit // 2) :], True


def flush() -> None:
    """Sends what was printed on its way, also where the cell replaced the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # What a cell put there may raise anything.
            continue


def answer(value: bytes, error: bytes, was_cut: bool) -> None:
    """Writes one answer."""
    head = b"%d %d %d %d\n" % (os.getpid(), len(value), len(error), was_cut)
    left = memoryview(head + value + error)
    while left:
        left = left[os.write(ANSWERS, left) :]


def serve(limit: int) -> None:
    """Runs cells until nobody asks any more.

    Args:
        limit: bytes of a value and of a traceback.
    """
    me, count = os.getpid(), 0
    for fd in (WORDS, ANSWERS, CODE):
        os.set_inheritable(fd, False)
    scope = sys.modules["__main__"].__dict__
    for name in [name for name in scope if not name.startswith("__")]:
        del scope[name]
    sys.argv = [""]
    answer(b"", b"", False)
    while os.read(WORDS, 1):
        count += 1
        name = f"<cell {count}>"
        source = os.pread(CODE, os.fstat(CODE).st_size, 0).decode("utf-8", "surrogateescape")
        SOURCES[name] = source
        if len(SOURCES) > MAX_SOURCES:
            del SOURCES[next(iter(SOURCES))]
        signal.signal(signal.SIGINT, interrupted)
        value, error = run(source, name, scope)
        flush()
        if os.getpid() != me:
            os._exit(0)
        kept, cut_value = cut(value.encode("utf-8", "backslashreplace"), limit)
        why, cut_error = cut(error.encode("utf-8", "backslashreplace"), limit)
        answer(kept, why, cut_value or cut_error)
