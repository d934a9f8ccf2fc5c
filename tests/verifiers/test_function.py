"""Plain functions as verifiers."""

import asyncio
import threading
import time

import pytest

from quintain.errors import ConfigError, VerifierError
from quintain.task import SandboxSpec
from quintain.verdict import Outcome, Verdict
from quintain.verifiers.function import as_verifier, verifier


def equal(text, answer):
    return text.strip() == answer


async def equal_async(task, trajectory):
    await asyncio.sleep(0)
    return trajectory.text == task.answer


def burn(text):
    while True:
        pass


def says(value):
    async def function(text):
        return value

    return function


async def test_a_pure_function_runs_in_a_worker(bench):
    made = verifier(equal)
    assert made.where == "worker"
    verdict = await bench.judge(made, " 42 ", "42")
    assert (verdict.reward, verdict.passed, verdict.verifier) == (1.0, True, "equal")
    assert verdict.wall_s > 0
    assert (await bench.judge(made, "41", "42")).outcome is Outcome.FAILED


async def test_async_functions_run_on_the_loop(bench):
    made = verifier(equal_async)
    assert made.where == "loop"
    assert (await bench.judge(made, "a", "a")).passed


async def test_a_function_that_sees_the_context_runs_in_a_thread(bench):
    seen = []

    def in_thread(context, text):
        seen.append(threading.current_thread())
        return context.trajectory.text == text

    made = verifier(in_thread)
    assert made.where == "thread"
    assert (await bench.judge(made, "x", None)).passed
    assert seen[0] is not threading.main_thread()


async def test_what_cannot_be_sent_runs_in_a_thread_with_a_reason(bench, caplog):
    lock = threading.Lock()

    def locked(text):
        with lock:
            return True

    made = verifier(locked)
    assert made.where == "thread"
    assert "cannot be sent to a worker" in caplog.text
    assert (await bench.judge(made, "x", None)).passed


async def test_decorator_with_and_without_arguments(bench):
    @verifier
    def plain(text):
        return text == "a"

    @verifier(name="mine", kind="heuristic")
    def named(*, text):
        return 0.25 if text else 0.0

    assert (await bench.judge(plain, "a", None)).passed
    verdict = await bench.judge(named, "a", None)
    assert (verdict.reward, verdict.passed) == (0.25, False)
    assert (verdict.verifier, verdict.kind) == ("mine", "heuristic")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.5, 2, "yes", [True]])
async def test_answers_that_are_no_reward_are_the_judges_fault(bench, value):
    with pytest.raises(VerifierError, match="expected a bool"):
        await bench.judge(verifier(says(value)), "x", None)


async def test_none_abstains_and_a_verdict_passes_through(bench):
    assert (await bench.judge(verifier(says(None)), "x", None)).outcome is Outcome.ABSTAINED
    given = Verdict.of(True, "because", score=0.5)
    verdict = await bench.judge(verifier(says(given)), "x", None)
    assert (verdict.explanation, verdict.score) == ("because", 0.5)


async def test_an_exception_is_a_verifier_error_never_a_zero(bench):
    async def on_loop(text):
        return 1 / 0

    for function in (on_loop, lambda text: 1 / 0):
        with pytest.raises(VerifierError, match="ZeroDivisionError"):
            await bench.judge(verifier(function), "x", None)


async def test_an_answer_that_burns_the_budget_fails_the_candidate(bench):
    verdict = await bench.judge(verifier(burn, deadline_s=0.3), "x", None)
    assert (verdict.reward, verdict.checks[0].name) == (0.0, "deadline")


async def test_a_function_that_waits_too_long_is_an_error(bench):
    async def slow(text):
        await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(VerifierError, match="did not answer"):
        await bench.judge(verifier(slow, deadline_s=0.2), "x", None)
    with pytest.raises(VerifierError):
        await bench.judge(verifier(lambda text: time.sleep(60)), "x", None, deadline_s=0.5)
    assert time.monotonic() - began < 30


def test_unknown_parameters_are_refused_with_what_is_on_offer():
    with pytest.raises(ConfigError, match="'gold' is not on offer"):
        verifier(lambda text, gold: True)
    assert verifier(lambda text, gold="x": True).wanted == ("text",)


async def test_a_missing_sandbox_is_said(bench):
    async def wants(sandbox):
        return True

    with pytest.raises(VerifierError, match="wants a sandbox"):
        await bench.judge(verifier(wants), "x", None)


def test_as_verifier():
    made = as_verifier(equal)
    assert as_verifier(made) is made
    with pytest.raises(ConfigError, match="got 3"):
        as_verifier(3)


async def test_what_the_candidate_did_not_leave_fails_it(bench):
    """Reading a file that was never written is no fault of the host: else doing nothing pays."""

    async def judge(sandbox):
        return (await sandbox.read("/work/run.py")) == b"right"

    box = await bench.open_sandbox(SandboxSpec())
    try:
        verdict = await bench.judge(verifier(judge, clean_room=["/work/run.py"]), sandbox=box)
        assert verdict.outcome is Outcome.FAILED
        assert "/work/run.py" in str(verdict.checks)
        await box.write("/work/run.py", "right")
        assert (await bench.judge(verifier(judge, clean_room=["/work/run.py"]), sandbox=box)).passed
    finally:
        await box.close()
