"""The script that runs a reference under coverage.py, inside a clean room.

It goes there as the code that `runner.py` runs, under that one's limits, and imports nothing of
this package. All inputs are run in one process, each with the reference freshly imported.
"""

from __future__ import annotations

import copy
import io
import os
import sys
import tempfile
import types
from typing import Any


def trace(tools: str, code: str, entry_point: str | None, inputs: list[Any]) -> list[list[int]]:
    """The reference's statements, and those that no input reached, by line."""
    runner = sys.modules["__main__"]
    sys.path.insert(0, tools)
    import coverage

    path = os.path.join(tempfile.mkdtemp(), "reference.py")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(code)
    program = compile(code, path, "exec", dont_inherit=True)
    watch = coverage.Coverage(data_file=None, config_file=False, include=[path])
    watch.start()
    try:
        for given in inputs:
            if entry_point is None:
                run_program(runner, program, given)
            else:
                call(runner, program, entry_point, given)
    finally:
        watch.stop()
    _, statements, _, missing, _ = watch.analysis2(path)
    return [list(statements), list(missing)]


def call(runner: Any, program: Any, entry_point: str, given: list[Any]) -> None:
    """Imports the code freshly and calls the function."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(program, module.__dict__)
    result = runner.find_entry(module, entry_point)(*copy.deepcopy(given))
    if type(result) is types.CoroutineType:
        import asyncio

        asyncio.run(result)


def run_program(runner: Any, program: Any, given: str) -> None:
    """Runs the code as a main program with this standard input."""
    os.dup2(runner.memory_file(given.encode()), 0)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8")
    try:
        runner.run_program(program)
    except SystemExit:
        return
