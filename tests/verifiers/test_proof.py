"""Coq proofs of exactly the statement asked for, from allowed axioms."""

from __future__ import annotations

import asyncio

import pytest

from quintain.errors import ConfigError, TaskError, VerifierError
from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers.proof import CLOSED, Proof, _assumed, _context, written
from quintain.verifiers.vernacular import Unreadable, declares, refused, sentences

coq = pytest.mark.coq
COMMUTES = {
    "statement": "forall n m : nat, n + m = m + n",
    "imports": "Require Import Arith.",
}
DOUBLE = {
    "statement": "forall n, double n = 2 * n",
    "definitions": "Definition double (n : nat) := n + n.",
    "imports": "Require Import Lia.",
}
CLASSIC = {
    "statement": "forall P : Prop, ~ ~ P -> P",
    "imports": "Require Import Classical.",
    "axioms": ["Coq.Logic.Classical_Prop.classic"],
}
HELPER = """(* A proof by hand. It "has. strings" *)
Require Import Arith.
Lemma step : forall n m, S (n + m) = n + S m.
Proof.
  intros n m. induction n as [| n IH].
  - reflexivity.
  - simpl. rewrite IH. reflexivity.
Qed.
Local Notation "a <+> b" := (a + b) (at level 50).
Theorem solution : forall a b : nat, a <+> b = b + a.
Proof.
  intros a b. induction a as [| a IH]; simpl.
  { now rewrite Nat.add_0_r. }
  { rewrite IH. apply step. }
Qed.
"""
RIGHT = {
    "tactics": ("intros n m. apply Nat.add_comm.", COMMUTES),
    "a proof": ("Here it is:\n```coq\nProof.\nintros. ring.\nQed.\n```\n", COMMUTES),
    "a file": (HELPER, COMMUTES),
    "a term": ("Definition solution := Nat.add_comm.", COMMUTES),
    "definitions": ("unfold double. lia.", DOUBLE),
    "allowed axiom": ("intros P. apply NNPP.", CLASSIC),
}
WRONG = {
    "nothing": (" ", COMMUTES),
    "unfinished": ("intros n m.", COMMUTES),
    "wrong tactic": ("reflexivity.", COMMUTES),
    "no such lemma": ("intros. apply no_such_lemma.", COMMUTES),
    "half a comment": ("intros. (* apply", COMMUTES),
    "another theorem": ("Theorem solution : True. Proof. exact I. Qed.", COMMUTES),
    "axiom not allowed": ("intros P. apply NNPP.", {**CLASSIC, "axioms": []}),
    "its own double": (
        "Definition double (n : nat) := 2 * n.\nTheorem solution : forall n, double n = 2 * n.\n"
        "Proof. reflexivity. Qed.",
        {**DOUBLE, "definitions": "Definition double (n : nat) := n + n + 1."},
    ),
}


async def judge(bench, cases):
    verifier, gate = Proof(), asyncio.Semaphore(2)

    async def one(text, answer):
        async with gate:
            return await bench.judge(verifier, text, answer, deadline_s=400)

    found = await asyncio.gather(*(one(*case) for case in cases.values()))
    return dict(zip(cases, found, strict=True))


@coq
async def test_right(bench):
    for name, verdict in (await judge(bench, RIGHT)).items():
        assert verdict.outcome is Outcome.SOLVED, (name, verdict.explanation)
        assert [check.name for check in verdict.checks][-1] == "coqchk"
        assert (verdict.verifier, verdict.kind) == ("proof", "formal")


@coq
@pytest.mark.parametrize(
    "names",
    [("unfinished", "axiom not allowed"), pytest.param(tuple(WRONG), marks=pytest.mark.slow)],
)
async def test_wrong(bench, names):
    chosen = {name: WRONG[name] for name in names}
    for name, verdict in (await judge(bench, chosen)).items():
        assert verdict.outcome is Outcome.FAILED, (name, verdict.explanation)


@coq
async def test_what_takes_too_long_fails_and_a_late_judge_does_not_fail(bench):
    forever = "intros. assert (2 ^ 40 = 0 -> False) by (vm_compute; discriminate). ring."
    verdict = await bench.judge(Proof(timeout_s=4), forever, COMMUTES)
    assert verdict.outcome is Outcome.FAILED
    assert "over a limit" in verdict.explanation
    with pytest.raises(VerifierError, match=r"no time is left|deadline came"):
        await bench.judge(Proof(), forever, COMMUTES, deadline_s=0.5)


@coq
async def test_a_proof_from_a_file(bench):
    box = await bench.open_sandbox(SandboxSpec())
    try:
        await box.write("proof.v", "intros. ring.")
        verifier = Proof(source="proof.v")
        assert (await bench.judge(verifier, "done", COMMUTES, sandbox=box)).passed
        await box.write("proof.v", "intros.")
        assert not (await bench.judge(verifier, "done", COMMUTES, sandbox=box)).passed
    finally:
        await box.close()


@coq
async def test_a_statement_that_does_not_compile_is_the_tasks_fault(bench):
    with pytest.raises(TaskError, match="does not compile"):
        await bench.judge(Proof(), "auto.", {"statement": "forall n, n = nothing"})


@coq
@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"statement": ""},
        {"statement": "True. Axiom a : False"},
        {"statement": "True (* open"},
        {"statement": "True", "name": "a b"},
    ],
)
def test_goals_that_are_refused(answer):
    with pytest.raises(TaskError):
        Proof().check_gold(Task(id="t", prompt="?", answer=answer))


def test_without_coq_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="apt-get install coq"):
        Proof()
    assert Proof(sandbox=SandboxSpec(image="with-coq")).timeout_s == 60.0
    with pytest.raises(ConfigError, match="positive"):
        Proof(timeout_s=0)


def test_sentences():
    text = 'intros n. (* a (* nested. *) "*)" . *) apply foo.bar.\nidtac "a. b ""c"" ". end'
    found = [" ".join(sentence.split()) for sentence in sentences(text)]
    assert found == ["intros n.", "apply foo.bar.", 'idtac "".', "end"]
    for text in ("(* open", 'idtac "open.', '(* "*) open'):
        with pytest.raises(Unreadable):
            list(sentences(text))
    assert declares("#[local] Theorem a : True.", "a")
    assert not declares("(* Theorem a : True. *) Theorem b : True.", "a")


@pytest.mark.parametrize(
    "text",
    [
        "Admitted.",
        "Axiom a : False.",
        'Load "x".',
        'Declare ML Module "x".',
        'Redirect "x" Print nat.',
        'Time Redirect "x" Print nat.',
        'Timeout 5 Redirect "x" Print nat.',
        '} Redirect "x" Print nat.',
        'Extraction "x" nat.',
        "Recursive Extraction nat.",
        'Add LoadPath "x" as Y.',
        "Unset Guard Checking.",
        "Global Unset Universe Checking.",
        "Local Set Universe Polymorphism.",
        "#[bypass_check(guard)] Fixpoint f (n : nat) : False := f n.",
        "Drop.",
        'Cd "x".',
        "native_compute.",
        "Register a as b.",
        "Primitive a := #int63_type.",
        "Theorem a : True",
        "auto. (* open",
    ],
)
def test_what_is_refused_at_first_sight(text):
    assert refused(text)


def test_honest_text_is_not():
    assert refused(HELPER) == ""
    assert refused("Set Implicit Arguments. Open Scope nat_scope. all: try lia. - auto.") == ""


def test_listed_assumptions():
    allowed = ("Coq.Logic.Classical_Prop.classic",)
    assert _assumed(CLOSED + "\n", ()) == ""
    assert _assumed("Axioms:\nclassic : forall P : Prop, P \\/ ~ P\n", allowed) == ""
    assert _assumed("Axioms:\nClassical_Prop.classic\n  : forall P : Prop, P\n", allowed) == ""
    for wrong in (
        "",
        "Axioms:\nSub.Classical_Prop.classic : False\n",
        "Axioms:\nclassic : P\nSub.f is assumed to be guarded.\n",
        f"{CLOSED}\nAxioms:\na : False\n",
        f"Something else\n{CLOSED}\n",
    ):
        assert _assumed(wrong, allowed), wrong


def test_the_summary_of_the_second_kernel():
    good = (
        "* Theory: Set is predicative\n* Axioms:\n    Coq.a.b\n* Constants/Inductives relying on "
        "type-in-type: <none>\n* Constants/Inductives relying on unsafe (co)fixpoints: <none>\n"
        "* Inductives whose positivity is assumed: <none>\n"
    )
    assert _context(good, ()) == ""
    assert "Given.Sub.a" in _context(good.replace("Coq.a.b", "Given.Sub.a"), ())
    assert _context(good.replace("positivity is assumed: <none>", "x:\n    Given.Sub.T"), ())
    assert "cannot be read" in _context("", ())


def test_the_proof_in_a_message():
    assert written("a\n```coq\nauto.\n```\n```python\n1\n```") == "auto.\n"
    assert written("auto.") == "auto."
