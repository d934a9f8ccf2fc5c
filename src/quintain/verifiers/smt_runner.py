"""Asks z3 and cvc5 about one script, in a worker process that may be killed.

A module of its own, because workers fork from one process a module: both solvers are loaded once.
"""

from __future__ import annotations

import json

import cvc5
import z3


def run_text(text: str) -> str:
    """Answers of both solvers.

    Args:
        text: JSON with `script` (SMT-LIB up to and without check-sat) and `limit_ms` of each.

    Returns:
        JSON: solver to "sat", "unsat", "unknown", or "error: …".
    """
    job = json.loads(text)
    return json.dumps(
        {"z3": _z3(job["script"], job["limit_ms"]), "cvc5": _cvc5(job["script"], job["limit_ms"])}
    )


def _z3(script: str, limit_ms: int) -> str:
    try:
        solver = z3.Solver()
        solver.set("timeout", limit_ms)
        solver.from_string(script)
        return str(solver.check())
    except z3.Z3Exception as error:
        return f"error: {error}"


def _cvc5(script: str, limit_ms: int) -> str:
    try:
        solver = cvc5.Solver(cvc5.TermManager())
        solver.setOption("tlimit-per", str(limit_ms))
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "goal")
        symbols = parser.getSymbolManager()
        while not (command := parser.nextCommand()).isNull():
            command.invoke(solver, symbols)
        result = solver.checkSat()
    except RuntimeError as error:
        return f"error: {error}"
    return "sat" if result.isSat() else "unsat" if result.isUnsat() else "unknown"
