"""What a guard lets through, and what it turns into an error."""

import asyncio

import pytest

from quintain.errors import ConfigError, VerifierError
from quintain.task import SandboxSpec
from quintain.verdict import Verdict
from quintain.verifiers.answer import Answer
from quintain.verifiers.guards import guarded


class Says:
    """Answers with what a function of (text, number of the call) gives."""

    kind = "formal"

    def __init__(self, give, name="says"):
        self.give, self.name, self.calls = give, name, 0

    async def judge(self, context):
        self.calls += 1
        given = self.give(context.trajectory.text, self.calls)
        return await given if asyncio.iscoroutine(given) else given


def right(text, _n):
    return Verdict.of(text == "right")


async def test_a_sound_verifier_passes_through(bench):
    guard = guarded(Says(right), repeat_share=1.0)
    assert (await bench.judge(guard, "right")).passed
    assert not (await bench.judge(guard, "wrong")).passed
    assert guard.counts == {"canaries": 1, "verdicts": 2, "repeats": 2}
    assert (guard.name, guard.kind) == ("says", "formal")


NAN = Verdict.model_construct(reward=float("nan"), passed=True)
BIG = Verdict.model_construct(reward=2.0, passed=True)
NOTHING = Verdict.model_construct(reward=None, passed=True)
HOLLOW = Verdict.model_construct(reward=0.0, passed=True)


@pytest.mark.parametrize("given", [NAN, BIG, NOTHING, HOLLOW, 1.0, True, None, "passed"])
async def test_only_sound_verdicts_count(bench, given):
    guard = guarded(Says(lambda *_: given), canary_every=0)
    with pytest.raises(VerifierError):
        await bench.judge(guard, "x")
    assert guard.counts["malformed"] == 1


async def test_a_late_verdict_is_an_error(bench):
    guard = guarded(Says(lambda *_: asyncio.sleep(60)), deadline_s=0.05, canary_every=0)
    with pytest.raises(VerifierError, match="did not answer"):
        await bench.judge(guard, "x")
    assert guard.counts["late"] == 1


async def test_an_error_of_its_own_is_no_deadline(bench):
    def own(*_):
        raise TimeoutError("mine")

    guard = guarded(Says(own), canary_every=0)
    with pytest.raises(VerifierError, match="mine"):
        await bench.judge(guard, "x")
    assert not guard.counts["late"]


async def test_a_verifier_that_passes_nothing_at_all_is_switched_off(bench):
    guard = guarded(Says(lambda *_: Verdict.of(True)))
    for _ in range(2):
        with pytest.raises(VerifierError, match="switched off"):
            await bench.judge(guard, "x")
    assert guard.counts == {"canaries": 1, "refused": 2}


async def test_canaries_of_ones_own_and_again_later(bench):
    turns_bad = Says(lambda text, n: Verdict.of(n > 4 or text == "right"))
    guard = guarded(turns_bad, canaries=lambda task: ["fake"], canary_every=2, repeat_share=0)
    assert (await bench.judge(guard, "right")).passed
    assert (await bench.judge(guard, "right")).passed
    with pytest.raises(VerifierError, match="switched off"):
        await bench.judge(guard, "right")


async def test_a_canary_stands_in_a_fresh_sandbox(bench):
    """A verifier of files is not blinded by what the candidate has left."""

    class Reads:
        name, kind = "reads", "formal"

        async def judge(self, context):
            try:
                return Verdict.of(await context.sandbox.read("done") == b"yes")
            except FileNotFoundError:
                return Verdict.of(False)

    box = await bench.open_sandbox(SandboxSpec())
    try:
        await box.write("done", b"yes")
        guard = guarded(Reads())
        assert (await bench.judge(guard, "x", sandbox=box)).passed
        assert guard.counts["canaries"] == 1
    finally:
        await box.close()


async def test_a_flip_is_an_error_unless_told(bench):
    def flips(_text, n):
        return Verdict.of(n % 2 == 1)

    guard = guarded(Says(flips), repeat_share=1.0, canary_every=0)
    with pytest.raises(VerifierError, match="and then"):
        await bench.judge(guard, "x")
    assert guard.counts["flips"] == 1

    def told(text, n):
        return flips(text, n).model_copy(update={"deterministic": False})

    guard = guarded(Says(told), repeat_share=1.0, canary_every=0)
    await bench.judge(guard, "x")
    assert guard.counts["flips"] == 1


async def test_the_share_that_is_judged_twice(bench):
    guard = guarded(Says(right), repeat_share=0.2, canary_every=0)
    for n in range(200):
        await bench.judge(guard, f"text {n}")
    assert 20 <= guard.counts["repeats"] <= 65


class Spins:
    name, kind = "spins", "formal"

    async def judge(self, context):
        while context.trajectory.text == "spin":
            pass
        return Verdict.of(context.trajectory.text == "right")


async def test_isolation_ends_a_judge_that_spins(bench):
    guard = guarded(Spins(), isolate=True, cpu_s=0.3, repeat_share=0)
    verdict = await bench.judge(guard, "spin")
    assert verdict.reward == 0.0
    assert verdict.checks[0].name == "budget"
    assert (await bench.judge(guard, "right")).passed


async def test_isolation_of_a_verifier_that_uses_workers(bench):
    guard = guarded(Answer("math"), isolate=True)
    assert (await bench.judge(guard, r"\boxed{\sin(\pi/6)}", "1/2")).passed


async def test_isolation_has_no_sandbox(bench):
    class Opens:
        name, kind = "opens", "formal"

        async def judge(self, context):
            await context.open_sandbox(SandboxSpec())

    with pytest.raises(VerifierError, match="isolated"):
        await bench.judge(guarded(Opens(), isolate=True, canary_every=0), "x")


@pytest.mark.parametrize(
    "option",
    [{"repeat_share": 2}, {"canary_every": -1}, {"deadline_s": 0}, {"cpu_s": float("inf")}],
)
def test_what_is_refused(option):
    with pytest.raises(ConfigError):
        guarded(Says(right), **option)
