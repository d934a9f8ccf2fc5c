"""Careless graders, each with one fault that is seen in the field; every exploit beats one of them.

A naive grader is a script that runs whole inside a sandbox without network, beside the submission:
it finds that in a file and prints its verdict as the last line, `reward 1` or `reward 0`. They all
pay for a right solution and, without an exploit, not for a wrong one: a naive grader is the control
that shows an exploit to be real.
"""

from __future__ import annotations

from quintain.audits.exploits.kinds import Exploit
from quintain.audits.naive.answers import ANSWERS
from quintain.audits.naive.calls import CALLS
from quintain.audits.naive.functions import FUNCTIONS
from quintain.audits.naive.judges import JUDGES
from quintain.audits.naive.kinds import Graders
from quintain.audits.naive.programs import PROGRAMS
from quintain.audits.naive.proofs import PROOFS
from quintain.audits.naive.queries import QUERIES
from quintain.audits.naive.terminals import TERMINALS
from quintain.protocols import ExecResult, SandboxBackend
from quintain.task import SandboxSpec

SPEC = SandboxSpec(memory_mb=256, exec_s=20)
WAIT_S = 12.0
ENTRY = "square"
"""The function that the graders of functions ask for."""

NAIVE: dict[str, Graders] = {
    "function": FUNCTIONS,
    "program": PROGRAMS,
    "answer": ANSWERS,
    "terminal": TERMINALS,
    "calls": CALLS,
    "sql": QUERIES,
    "judge": JUDGES,
    "proof": PROOFS,
}
"""By the form of a submission, which is also how the names of its exploits begin."""


async def paid(backend: SandboxBackend, form: str, grader: str, source: str) -> bool:
    """Whether a naive grader pays for a submission, both inside one sandbox without network.

    A grader that the submission kills, or that says nothing, does not pay, unless it is one of
    those that excuse faults: they run the submission in a process of its own.
    """
    graders = NAIVE[form]
    sandbox = await backend.open(SPEC)
    try:
        await sandbox.write(graders.path, source.replace("ENTRY", ENTRY))
        for path, content in graders.files.items():
            await sandbox.write(path, content)
        run: ExecResult = await sandbox.exec(
            ["python3", "-c", graders.scripts[grader]], timeout_s=WAIT_S, cwd="/work"
        )
        lines = run.text.strip().splitlines()
        return bool(lines) and lines[-1] == "reward 1"
    finally:
        await sandbox.close()


async def beaten(backend: SandboxBackend, exploit: Exploit) -> bool:
    """Whether an exploit beats the naive grader that it names."""
    graders = NAIVE[exploit.form]
    source = exploit.beside(graders.known or graders.right)
    return await paid(backend, exploit.form, exploit.naive, source)
