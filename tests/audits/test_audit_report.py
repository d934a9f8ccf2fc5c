"""What a report says beyond findings: leaks, symmetry, invariance, learnability, OpenEnv's list."""

from __future__ import annotations

import itertools

import pytest

import quintain as q
from quintain.audits import aaudit
from quintain.audits.leaks import needles_of, probe
from quintain.audits.page import to_html
from quintain.audits.rfc008 import checks
from quintain.audits.trials import Pass
from quintain.envs import calculator, terminal
from quintain.envs.environment import Environment
from quintain.envs.episode import ToolEpisode
from quintain.messages import user
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec, Split, Task
from quintain.verifiers.answer import Answer

ONCE = [Pass("once", 4)]
TWICE = [Pass("first", 2), Pass("second", 2, shuffled=True)]
SECRET = "the grey heron stands still"
SPEC = SandboxSpec(memory_mb=128)


def task(**fields):
    made = {"id": "a", "prompt": "Say it.", "answer": SECRET, "split": "eval", **fields}
    return Task.model_validate(made)


async def says(text: str, answer: str) -> bool:
    return text.strip() == answer


def with_secret(write):
    """An environment whose episode leaves something in the sandbox before the policy acts."""

    async def open(public, world, sandbox, seed):
        await write(sandbox)
        return ToolEpisode(public.prompt, (), task=public, world=world, sandbox=sandbox, seed=seed)

    return Environment([task()], says, name="leaky", sandbox=SPEC, episode=open)


async def nothing(sandbox):
    return None


async def in_a_file(sandbox):
    await sandbox.write("/tmp/notes.txt", f"note: {SECRET}")


async def in_the_processes(sandbox):
    session = await sandbox.session()
    await session.run(f"sh -c 'sleep 60; : {SECRET}' >/dev/null 2>&1 &")


@pytest.mark.parametrize(
    ("write", "where"),
    [(nothing, ""), (in_a_file, "file /tmp/notes.txt"), (in_the_processes, "process list")],
)
async def test_leaks_in_the_sandbox(write, where):
    seen = await probe(with_secret(write), task(), {})
    assert seen.fault == ""
    assert seen.interfaces == ["lo"]
    assert seen.remains == []
    assert seen.same_opening is True
    assert [leak.certain for leak in seen.leaks] == ([True] if where else [])
    assert all(where in leak.where and SECRET in leak.what for leak in seen.leaks)


async def test_leaks_elsewhere():
    def tool() -> str:
        """The grey heron stands still: say so."""
        return ""

    tool.__doc__ = f"Says {SECRET}."
    leaky = Environment([task(metadata={"gold": SECRET})], says, name="leaky", tools=[tool])
    report = await aaudit(leaky, passes=ONCE, sources=["non-solvers"])
    places = {leak.where for leak in report.leaks}
    assert places == {"the metadata", "the tools' descriptions"}
    assert "the policy can read the answer" in report.problems()[0]
    found = [finding for finding in report.findings if finding.weakness == "BGW-115"]
    assert len(found) == 2
    again = await aaudit(leaky, passes=ONCE, only=[found[0].submission])
    assert {finding.id for finding in again.findings} == {finding.id for finding in found}
    assert "leak probe" in found[0].command("x.py:env")
    assert found[0].title in to_html(report, "x.py:env")


async def test_what_the_prompt_says_is_for_a_person():
    quoting = Environment([task(prompt=f"Repeat: {SECRET}")], says, name="quoting")
    report = await aaudit(quoting, passes=ONCE, sources=["gold"])
    assert [leak.certain for leak in report.leaks] == [False]
    assert report.findings == ()
    assert report.problems() == []
    assert "BGW-115" not in report.not_measured


async def test_short_answers_are_not_looked_for():
    short = Environment([task(answer="42")], says, name="short")
    report = await aaudit(short, passes=ONCE, sources=["gold"])
    assert "too short" in report.unmeasured["leaks"]
    assert "BGW-115" in report.not_measured
    assert needles_of(task(answer={"cases": [{"input": [12345678], "expected": 87654321}]})) == {
        "87654321": "of the answer"
    }


async def test_an_episode_that_finds_the_one_before(monkeypatch):
    class Same:
        """A backend that hands out one sandbox again and again."""

        name = "same"

        def __init__(self, inner):
            self.inner, self.kept = inner, None

        async def open(self, spec):
            if self.kept is None:
                self.kept = await self.inner.open(spec)
                self.end, self.kept.close = self.kept.close, self.stay
            return self.kept

        async def stay(self):
            return None

        async def close(self):
            await self.end()

    backend = Same(NativeBackend(allow_weaker=True))
    try:
        environment = with_secret(nothing)
        report = await aaudit(environment, passes=ONCE, sources=["gold"], backend=backend)
    finally:
        await backend.close()
        await backend.inner.close()
    assert report.probes[0].remains
    by_id = {check.id: check for check in checks(report, environment)}
    assert by_id["runtime.episode_isolation"].status == "failed"
    assert by_id["runtime.network_policy"].status == "passed"


def uneven(text: str, answer: str) -> bool:
    """Takes what begins with the answer."""
    said = text.removeprefix("\\boxed{").removesuffix("}").strip()
    return said.startswith(answer.strip())


async def test_symmetry_and_invariance():
    tasks = [{"id": "a", "prompt": "6 * 7?", "answer": "42", "split": "eval"}]
    even = await aaudit(Environment(tasks, Answer("number"), name="even"), passes=ONCE)
    assert even.asymmetries == ([], 3)
    assert even.invariance[0] == 0 < even.invariance[1]
    assert even.leads == ()

    async def skewed(text, answer):
        return uneven(text, answer)

    odd = await aaudit(
        Environment(tasks, skewed, name="odd"), passes=ONCE, sources=["gold", "symmetry"]
    )
    assert odd.asymmetries == (["'42' and '42.0'", "'42' and '42.00'"], 3)

    async def literal(text, answer):
        return text == answer

    narrow = await aaudit(
        Environment(tasks, literal, name="narrow"), passes=ONCE, sources=["gold", "invariance"]
    )
    assert narrow.invariance == (2, 2)
    assert {finding.weakness for finding in narrow.findings} == {"BGW-120"}


async def test_flips_are_told_by_pass():
    turns = itertools.count()

    async def turning(text: str, answer: str) -> bool:
        return next(turns) < 1

    environment = Environment([task()], turning, name="turning")
    report = await aaudit(environment, passes=TWICE, sources=["gold"])
    assert report.flips_by_pass == {"second": 1}
    assert report.to_json()["flips_by_pass"] == {"second": 1}


async def test_learnability():
    tasks = [task(), task(id="b", answer="never said, never")]
    environment = Environment(tasks, says, name="said")
    parrot = q.scripted(lambda messages, tools, seed: SECRET if seed % 2 else "no", name="parrot")
    report = await aaudit(
        environment, tasks=tasks, passes=ONCE, sources=["gold"], policy=parrot, samples=16
    )
    tried = report.learnability
    assert tried.learnable
    assert tried.mixed == 1
    assert tried.by_task["b"] == (0, 16)
    assert 0 < tried.rate.value < 0.5
    assert "learnability" not in report.unmeasured
    mute = q.scripted(["nothing"], name="mute")
    report = await aaudit(environment, passes=ONCE, sources=["gold"], policy=mute, samples=2)
    assert not report.learnability.learnable
    by_number = {check.number: check for check in checks(report, environment)}
    assert (by_number[13].status, by_number[15].status) == ("failed", "passed")


@pytest.mark.parametrize("made", [terminal.environment, calculator.environment])
async def test_the_44_checks(made):
    environment = made()
    first = next(iter(environment.tasks.split(Split.EVAL)))
    report = await aaudit(
        environment, tasks=[first], passes=TWICE, sources=["gold", "non-solvers", "fakes"]
    )
    listed = checks(report, environment)
    assert [check.number for check in listed] == list(range(1, 45))
    assert {check.status for check in listed} == {"passed", "not applicable", "not measured"}
    assert all(check.reason for check in listed)
    assert sum(check.status == "passed" for check in listed) >= 20


async def test_the_checks_fail_where_they_should():
    async def pays(text: str, answer: str) -> float:
        return 1.0

    opened = itertools.count()

    async def open(public, world, sandbox, seed):
        prompt = (user(f"episode {next(opened)}"),)
        return ToolEpisode(prompt, (), task=public, world=world, sandbox=sandbox, seed=seed)

    environment = Environment(
        [task()],
        pays,
        name="bad",
        episode=open,
        sandbox=SandboxSpec(packages=("left-pad",)),
        fakes=lambda task: [["fake"]],
    )
    environment.sandbox = SPEC.model_copy(update={"packages": ("left-pad",)})
    report = await aaudit(
        environment, passes=ONCE, sources=["non-solvers", "fakes"], probes=False, retries=0
    )
    failed = {check.id for check in checks(report, environment) if check.status == "failed"}
    assert {"static.dependency_pinning"} <= failed
    plain = Environment([task()], pays, name="bad", episode=open, fakes=lambda task: [["fake"]])
    report = await aaudit(plain, passes=TWICE, sources=["gold", "non-solvers", "fakes"])
    failed = {check.id for check in checks(report, plain) if check.status == "failed"}
    assert failed >= {
        "semantic.oracle_max, semantic.floor_gap",
        "statistical.adversarial_floor",
        "semantic.canary_floor",
        "runtime.seed_control",
        "runtime.episode_determinism",
    }
