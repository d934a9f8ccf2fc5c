"""Formulas, invariants, models and cores, by two solvers that must agree."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("z3", reason="pip install 'quintain[smt]'")
pytest.importorskip("cvc5", reason="pip install 'quintain[smt]'")

from quintain.errors import ConfigError, TaskError
from quintain.task import Task
from quintain.verdict import Outcome
from quintain.verifiers.smt import Smt
from quintain.verifiers.smt_runner import run_text
from quintain.verifiers.smtlib import BadTerm, Scope, one, parse, sort_of

EQUIVALENT = {
    "goal": "equivalent",
    "symbols": {"x": "Int", "y": "Int"},
    "formula": "(and (> x 2) (<= x 10))",
}
BITS = {
    "goal": "equivalent",
    "symbols": {"a": "(_ BitVec 8)"},
    "formula": "(bvand a (bvneg a))",
}
INVARIANT = {
    "goal": "invariant",
    "symbols": {"x": "Int"},
    "init": "(= x 0)",
    "step": "(= x_next (+ x 2))",
    "safe": "(distinct x 7)",
}
MODEL = {
    "goal": "model",
    "symbols": {"x": "Int", "y": "Real"},
    "formula": "(and (= (* x x) 49) (< x 0) (= (* 2 y) 3))",
}
DECIDE = {
    "goal": "decide",
    "symbols": {"x": "Int"},
    "formulas": {"a": "(> x 3)", "b": "(< x 3)", "c": "(> x 0)", "d": "(< x 9)"},
    "max_core": 2,
}
POSSIBLE = {**DECIDE, "formulas": {"a": "(> x 3)", "b": "(< x 7)"}}

RIGHT = [
    ("(and (< 2 x) (not (> x 10)))", EQUIVALENT),
    ("```smt2\n(or (= x 3) (and (>= x 4) (< x 11)))\n```", EQUIVALENT),
    ("(let ((big (> x 2)) (small (< x 11))) (and big small))", EQUIVALENT),
    ("; a comment\n(and (>= (- x 3) 0) (<= x 10))", EQUIVALENT),
    ("(bvand a (bvadd (bvnot a) #x01))", BITS),
    ("(and (>= x 0) (= (mod x 2) 0))", INVARIANT),
    ("(= (mod x 2) 0)", INVARIANT),
    ("((x (- 7)) (y 1.5))", MODEL),
    ("((y (/ 3 2)) (x (- 7)))", MODEL),
    ("(unsat a b)", DECIDE),
    ("(sat (x 5))", POSSIBLE),
]
WRONG = [
    ("(> x 2)", EQUIVALENT),
    ("true", EQUIVALENT),
    ("x", EQUIVALENT),
    ("", EQUIVALENT),
    ("(and (> x 2) (<= x 10)) (exit)", EQUIVALENT),
    ("(bvand a a)", BITS),
    ("(>= x 0)", INVARIANT),
    ("true", INVARIANT),
    ("(= x 0)", INVARIANT),
    ("false", INVARIANT),
    ("(distinct x_next 9)", INVARIANT),
    ("((x 7) (y 1.5))", MODEL),
    ("((x (- 7)))", MODEL),
    ("((x (- 7)) (x 3) (y 1.5))", MODEL),
    ("((x y) (y 1.5))", MODEL),
    ("(unsat a c)", DECIDE),
    ("(unsat a b c)", DECIDE),
    ("(unsat)", DECIDE),
    ("(unsat e)", DECIDE),
    ("unsat", DECIDE),
    ("(sat (x 4))", DECIDE),
    ("(sat (x 3))", POSSIBLE),
    ("(unsat a b)", POSSIBLE),
]
SMUGGLED = [
    "(exit)",
    "(assert false)",
    "true) (assert false) (check-sat",
    "true (assert false)",
    "(set-option :produce-models true)",
    '(echo "unsat")',
    "(define-fun gold () Bool true)",
    "(declare-const x Bool)",
    "(push 1)",
    "(let ((x 5)) (and (> x 2) (<= x 10)))",
    "(let ((and or)) true)",
    "(forall ((x Int)) (and (> x 2) (<= x 10)))",
    "(! true :named a)",
    "(as true Bool)",
    "|x|",
    "x ; \n (assert false)",
    "(_ char #x41)",
    "(ite (> x 2) (<= x 10) 0)",
    "(+ x true)",
    "gold",
    "t0!0",
    "(" * 150 + "x" + ")" * 150,
    "(and " + "true " * 5000 + ")",
]


async def test_right_and_wrong(bench):
    verifier = Smt()
    for text, answer in RIGHT:
        verdict = await bench.judge(verifier, text, answer)
        assert verdict.outcome is Outcome.SOLVED, (text, verdict)
    for text, answer in WRONG:
        verdict = await bench.judge(verifier, text, answer)
        assert verdict.outcome is Outcome.FAILED, (text, verdict)
    assert (verdict.verifier, verdict.kind) == ("smt", "formal")


async def test_nothing_is_smuggled_in(bench):
    for text in SMUGGLED:
        verdict = await bench.judge(Smt(), text, EQUIVALENT)
        assert verdict.outcome is Outcome.FAILED, (text, verdict)


async def test_bound_names_stand_for_nothing_else(bench):
    """`(let ((x x)) …)` is allowed and means the same; names of ours cannot be guessed at."""
    text = "(let ((x x) (c x)) (let ((x c) (y 3)) (and (> x 2) (<= x 10))))"
    assert (await bench.judge(Smt(), text, EQUIVALENT)).passed
    kept = "(let ((y (mod x 2))) (= y 0))"
    assert (await bench.judge(Smt(), kept, INVARIANT)).passed


async def test_what_cannot_be_said_is_an_abstention(bench):
    hard = {
        "goal": "equivalent",
        "symbols": {"x": "Int", "y": "Int", "z": "Int"},
        "formula": "(= (+ (* x x x) (* y y y) (* z z z)) 33)",
    }
    verdict = await bench.judge(Smt(cpu_s=2), "(= (+ (* x x x) (* y y y)) (- z))", hard)
    assert verdict.outcome in (Outcome.ABSTAINED, Outcome.FAILED)
    verdict = await bench.judge(Smt(cpu_s=2), "false", hard)
    assert verdict.outcome is Outcome.ABSTAINED
    assert verdict.reward is None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"goal": "equivalent", "symbols": {"x": "Int"}},
        {"goal": "equivalent", "symbols": {"x": "Text"}, "formula": "true"},
        {"goal": "equivalent", "symbols": {"and": "Bool"}, "formula": "true"},
        {"goal": "model", "symbols": {"x": "Int"}, "formula": "x"},
        {"goal": "model", "symbols": {"x": "Int"}, "formula": "(> z 1)"},
        {**DECIDE, "max_core": 0},
        {**INVARIANT, "symbols": {"x": "Int", "x_next": "Int"}},
    ],
)
def test_tasks_that_are_refused(answer):
    with pytest.raises(TaskError):
        Smt().check_gold(Task(id="t", prompt="?", answer=answer))


async def test_from_a_contradiction_nothing_follows(bench):
    with pytest.raises(TaskError, match="not satisfiable"):
        await bench.judge(Smt(), "false", {**INVARIANT, "init": "(and (= x 0) (= x 1))"})
    with pytest.raises(TaskError, match="not satisfiable"):
        await bench.judge(Smt(), "true", {**EQUIVALENT, "assume": "(< x x)"})


def test_both_solvers_are_asked():
    job = {"script": "(set-logic ALL)\n(declare-fun x () Int)\n(assert (> x 1))", "limit_ms": 5000}
    assert json.loads(run_text(json.dumps(job))) == {"z3": "sat", "cvc5": "sat"}
    job["script"] += "(assert (< x 1))"
    assert json.loads(run_text(json.dumps(job))) == {"z3": "unsat", "cvc5": "unsat"}
    job["script"] = "(assert nothing)"
    assert all(v.startswith("error") for v in json.loads(run_text(json.dumps(job))).values())


def test_terms_are_written_anew():
    scope = Scope({"x": ((), "Int"), "f": (("Int",), "Real")}, quantifiers=True)
    text, sort = scope.term(one("(forall ((y Int)) (let ((z (f y))) (> z x)))"))
    assert sort == "Bool"
    assert text == "(forall ((b!0 Int)) (let ((b!1 (f b!0))) (> b!1 (to_real x))))"
    assert scope.term(one("((_ extract 3 0) #xff)")) == ("((_ extract 3 0) #xff)", "BitVec 4")
    assert sort_of("(_ BitVec 32)") == "BitVec 32"
    for wrong in ("(f)", "(f 1.0)", "((_ extract 9 0) #xff)", "(_ bv300 8)", "()", "(distinct 1)"):
        with pytest.raises(BadTerm):
            scope.term(one(wrong))
    for wrong in (")", "(", '"a"', "|a|"):
        with pytest.raises(BadTerm):
            parse(wrong)


def test_settings():
    with pytest.raises(ConfigError, match="positive"):
        Smt(cpu_s=0)
