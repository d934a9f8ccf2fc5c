"""Lean proofs against a stub that keeps comparator's contract; the real one was never run."""

from __future__ import annotations

import pytest

from quintain.errors import TaskError, VerifierError
from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers.proof_lean import Lean, LeanGoal, written

STUB = """
import json, re, sys
config = json.load(open(sys.argv[1]))
challenge = open(config["challenge_module"] + ".lean").read()
solution = open(config["solution_module"] + ".lean").read()
(name,) = config["theorem_names"]
said = lambda text: re.search(rf"theorem {name} : (.*?) := by", text)
if said(challenge)[1] != (said(solution) or [0, 0])[1]: sys.exit("another statement")
used = set(re.findall(r"^axiom (\\w+)", solution, re.M)) | {"sorryAx"} & set(
    "sorryAx" for _ in re.findall(r"\\bsorry\\b", solution))
if used - set(config["permitted_axioms"]): sys.exit(f"axioms: {used}")
"""
GOAL = {"statement": "∀ n m : Nat, n + m = m + n"}


def lean(stub=STUB, **more):
    return Lean(SandboxSpec(), command=("python3", "-c", stub), **more)


async def test_right_and_wrong(bench):
    verifier = lean()
    file = f"theorem solution : {GOAL['statement']} := by\n  intro n m; omega\n"
    for text in ("intro n m\nomega", f"```lean\n{file}```"):
        assert (await bench.judge(verifier, text, GOAL)).outcome is Outcome.SOLVED, text
    for text in (
        "",
        "sorry",
        "axiom magic : False\n" + file,
        "theorem solution : True := by\n  trivial\n",
    ):
        verdict = await bench.judge(verifier, text, GOAL)
        assert verdict.outcome is Outcome.FAILED, text
        assert (verdict.verifier, verdict.kind) == ("lean", "formal")


@pytest.mark.parametrize("stub", ["", "raise SystemExit('no landrun')"])
async def test_a_broken_installation_fails_nobody(bench, stub):
    with pytest.raises(VerifierError, match="does not work here"):
        await bench.judge(lean(stub), "omega", GOAL)


async def test_a_missing_one_neither(bench):
    verifier = Lean(SandboxSpec(), command=("/no/such/program",))
    with pytest.raises(VerifierError):
        await bench.judge(verifier, "omega", GOAL)


def test_goals_and_files():
    with pytest.raises(TaskError):
        lean().check_gold(Task(id="t", prompt="?", answer={"statement": "True", "name": "a b"}))
    goal = LeanGoal(statement="True", imports="import Mathlib", definitions="def a := 1")
    assert goal.challenge.startswith("import Mathlib\ndef a := 1\n")
    assert "theorem solution : True := by\n  trivial\n" in goal.solution("trivial")
    assert goal.solution("import X\ntheorem solution : True := trivial").startswith("import X")
    assert written("```lean4\nrfl\n```") == "rfl\n"
