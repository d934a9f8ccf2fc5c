"""Evals end to end: run, stop, resume, summarise, compare; everything read back from the store."""

from __future__ import annotations

import io
import math

import pytest

import quintain as q
from openai_server import OpenAIServer, Status
from quintain.errors import ConfigError, PolicyError, PolicyRefused, StoreError, VerifierError
from quintain.evals import EvalRun, purpose_of
from quintain.messages import assistant
from quintain.policies.chat import Chat, ServerRefuses
from quintain.rollouts import Progress
from quintain.store import Store
from quintain.trajectory import Action, Usage
from quintain.verdict import Outcome, Verdict


async def right(text, answer):
    """Async, so that it runs on the loop and costs nothing."""
    if answer == "broken judge":
        raise VerifierError("the judge broke")
    if answer == "undecidable":
        return Verdict.abstain("cannot say")
    return text == answer


def adder(tasks=10, **more):
    rows = [
        {"id": f"t{i}", "prompt": f"{i}+1", "answer": str(i + 1), "split": "eval"}
        for i in range(tasks)
    ]
    return q.Environment(rows, right, name="adder", **more)


def number(messages):
    return int(messages[-1].text.split("+")[0])


def good(messages, tools, seed):
    return str(number(messages) + 1)


def half(messages, tools, seed):
    """Solves even tasks always, odd ones never."""
    return str(number(messages) + 1) if number(messages) % 2 == 0 else "?"


async def test_scores_and_samples(tmp_path):
    run = await q.aevaluate(adder(), q.scripted(half), samples=3, run=tmp_path / "r")
    assert run.outcomes[Outcome.SOLVED] == run.outcomes[Outcome.FAILED] == 15
    assert set(run.outcomes) == set(Outcome)
    assert run.pass_at(1).value == run.mean().value == run.pass_hat(3).value == 0.5
    assert run.pass_at(1).interval.n == 10
    assert math.isnan(run.pass_at(4).value)
    assert run.pass_at(4).skipped == 10
    assert not run.warnings
    assert (len(run.failures), len(run.successes), len(run.errors)) == (15, 15, 0)
    failure = run.failures[0]
    assert failure.trajectory.task_id == failure.key.task_id == "t1"
    assert len(list(run.trajectories())) == 30
    out = io.StringIO()
    failure.show(out)
    assert "failed: reward 0" in out.getvalue()
    assert failure.reproduce in out.getvalue()
    assert failure.reproduce == (
        "q.rollout(environment, policy, 't1', sample_index=0, purpose='eval:eval@v0', seed=0)"
    )
    # The same from disk, by someone who knows the folder only.
    again = EvalRun.open(tmp_path / "r")
    assert again.summary() == run.summary()
    assert again.summary()["pass_at"]["1"]["value"] == 0.5
    assert again.config["planned"] == 30
    assert "pass@1 0.500" in str(again)
    assert "with 0 excluded as failures" in str(again)


async def test_the_line_that_reproduces_does(tmp_path):
    seen = []

    def watch(messages, tools, seed):
        seen.append(seed)
        return str(seed)

    run = await q.aevaluate(adder(), q.scripted(watch), samples=3, seed=4, run=tmp_path / "r")
    key = run.failures[7].key
    all_seeds = set(seen)
    seen.clear()
    again = await q.aevaluate(
        adder(), q.scripted(watch), seed=4, only=[f"{key.task_id}:{key.sample_index}"],
        purpose=key.purpose, run=tmp_path / "again",
    )  # fmt: skip
    assert len(seen) == 1
    assert seen[0] in all_seeds
    (sample,) = again.samples()
    assert sample.trajectory.messages == run.failures[7].trajectory.messages


async def test_what_the_host_breaks_is_never_a_failure(tmp_path):
    rows = [
        {"id": "ok", "prompt": "1+1", "answer": "2", "split": "eval"},
        {"id": "judge", "prompt": "2+1", "answer": "broken judge", "split": "eval"},
        {"id": "unsure", "prompt": "3+1", "answer": "undecidable", "split": "eval"},
        {"id": "down", "prompt": "4+1", "answer": "5", "split": "eval"},
    ]
    up = False

    def flaky(messages, tools, seed):
        if number(messages) == 4 and not up:
            raise PolicyError("server down")
        return str(number(messages) + 1)

    env = q.Environment(rows, right, name="mixed")
    run = await q.aevaluate(
        env, q.scripted(flaky), samples=2, run=tmp_path / "r", retries=1, backoff_s=0.001
    )
    assert {str(o): n for o, n in run.outcomes.items() if n} == {
        "solved": 2, "abstained": 2, "verifier_error": 2, "policy_error": 2
    }  # fmt: skip
    assert run.pass_at(1).value == run.mean().value == 1.0
    assert (run.pass_at(1).tasks, run.pass_at(1).skipped) == (1, 3)
    strict = run.pass_at(1, excluded_as_failures=True)
    assert (strict.value, strict.tasks) == (0.25, 4)
    assert run.mean(excluded_as_failures=True).value == 0.25
    assert "pass@1 is 1.000 without them and 0.250 with them as failures" in run.warnings[0]
    assert "3 of 4 tasks have no judged sample" in run.warnings[1]
    assert len(run.errors) == 4
    assert run.errors[0].trajectory.error.message

    up = True
    same = await q.aevaluate(env, q.scripted(flaky), samples=2, run=tmp_path / "r", resume=True)
    assert same.outcomes == run.outcomes  # a plain resume runs nothing again
    fixed = await q.aevaluate(
        env, q.scripted(flaky), samples=2, run=tmp_path / "r", resume=True, retry_errors=True,
        retries=0,
    )  # fmt: skip
    assert fixed.outcomes[Outcome.SOLVED] == 4
    assert fixed.outcomes[Outcome.POLICY_ERROR] == 0
    assert fixed.outcomes[Outcome.ABSTAINED] == 2  # the judge's word, not an error
    assert fixed.scores.samples == 8


async def test_a_budget_stops_and_a_resumed_run_goes_on(tmp_path):
    def dear(messages, tools, seed):
        return Action(
            message=assistant(str(number(messages) + 1)), usage=Usage(calls=1, cost_usd=1.0)
        )

    def start(budget, resume=False):
        return q.aevaluate(
            adder(), q.scripted(dear), samples=2, run=tmp_path / "r", max_cost_usd=budget,
            concurrency=1, resume=resume,
        )  # fmt: skip

    run = await start(5.0)
    assert run.scores.samples == 5
    assert run.scores.cost_usd == 5.0
    assert run.stopped == "budget: $5.0000 of $5 spent"
    assert "incomplete: 5 of 20 samples are done" in run.warnings[-1]
    assert run.pass_at(1).tasks == 5
    with pytest.raises(ConfigError, match="already holds a run"):
        await start(5.0)
    # What was spent before counts: nothing more is admitted.
    assert (await start(5.0, resume=True)).scores.samples == 5
    # A look at one sample more does not make it complete.
    looked = await q.aevaluate(
        adder(), q.scripted(dear), only=["t9:1"], run=tmp_path / "r", resume=True
    )
    assert "incomplete: 6 of 20 samples are done" in looked.warnings[-1]
    done = await start(None, resume=True)
    assert done.scores.samples == 20
    assert not done.stopped
    assert not done.warnings


async def test_resume_refuses_another_run(tmp_path):
    await q.aevaluate(adder(), q.scripted(good), run=tmp_path / "r")
    with pytest.raises(ConfigError, match="seed was 0, now 1"):
        await q.aevaluate(adder(), q.scripted(good), run=tmp_path / "r", resume=True, seed=1)
    with pytest.raises(ConfigError, match="policy was 'scripted', now 'other'"):
        await q.aevaluate(adder(), q.scripted(good, name="other"), run=tmp_path / "r", resume=True)
    # More samples of the same are the same run.
    run = await q.aevaluate(adder(), q.scripted(good), run=tmp_path / "r", resume=True, samples=3)
    assert run.scores.samples == 30


async def test_progress(tmp_path):
    progress, seen = Progress(total=None), []

    def on_done(trajectory, now):
        seen.append((now.done, now.total, str(trajectory.outcome)))

    await q.aevaluate(
        adder(4), q.scripted(good), run=tmp_path / "r", on_done=on_done, progress=progress
    )
    assert seen == [(n, 4, "solved") for n in (1, 2, 3, 4)]
    assert progress.outcomes["solved"] == 4


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["t2"], {("t2", 0), ("t2", 1)}),
        (["t2:1"], {("t2", 1)}),
        (["t2:1", "t3"], {("t2", 1), ("t3", 0), ("t3", 1)}),
        (["t2:7"], {("t2", 7)}),
        (["t9:0", "t9:0"], {("t9", 0)}),
    ],
)
async def test_only(tmp_path, only, expected):
    # Beyond `limit`, too: a stored sample can be named whatever the limit is now.
    run = await q.aevaluate(
        adder(), q.scripted(good), samples=2, limit=5, only=only, run=tmp_path / "r"
    )
    assert {(row.key.task_id, row.key.sample_index) for row in run.scores.rows} == expected


async def test_only_with_a_colon_in_the_id(tmp_path):
    rows = [{"id": "a:1", "prompt": "1+1", "answer": "2", "split": "eval"}]
    env = q.Environment(rows, right, name="colon")
    for only in ("a:1", "a:1:0"):
        run = await q.aevaluate(
            env, q.scripted(good), only=[only], run=tmp_path / only.replace(":", "_")
        )
        assert [row.key.task_id for row in run.scores.rows] == ["a:1"]


async def test_what_cannot_be_run_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("quintain.evals.evaluation.MAX_TASKS", 50)
    with pytest.raises(ConfigError, match=r"has no tasks in the heldout split; .*: eval"):
        await q.aevaluate(adder(), q.scripted(good), split="heldout", run=tmp_path / "r")
    with pytest.raises(ConfigError, match="more than 50 tasks, or no end: give a limit"):
        await q.aevaluate(adder(60), q.scripted(good), run=tmp_path / "r")
    with pytest.raises(ConfigError, match="samples is at least 1"):
        await q.aevaluate(adder(), q.scripted(good), samples=0, run=tmp_path / "r")
    with pytest.raises(ConfigError, match="is for training rollouts"):
        await q.aevaluate(adder(), q.scripted(good), purpose="train", run=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert (
        await q.aevaluate(adder(60), q.scripted(good), limit=2, run=tmp_path / "r")
    ).planned == 2


async def test_a_wrong_key_ends_the_run_at_once(tmp_path):
    async with OpenAIServer([Status(401)]) as server:
        policy = Chat("m", server.base_url, api_key="sk-secret-wrong")
        with pytest.raises(ServerRefuses, match="refuses the key"):
            await q.aevaluate(adder(), policy, run=tmp_path / "r", concurrency=1)
        assert len(server.bodies) == 1
        await policy.close()
    text = (tmp_path / "r" / "run.sqlite").read_bytes()
    assert b"sk-secret-wrong" not in text


async def test_a_refused_request_is_not_repeated(tmp_path):
    async with OpenAIServer([Status(403)]) as server:
        policy = Chat("m", server.base_url)
        run = await q.aevaluate(adder(3), policy, run=tmp_path / "r", retries=2)
        assert run.outcomes[Outcome.POLICY_ERROR] == 3
        assert len(server.bodies) == 3
        await policy.close()
    assert run.errors[0].trajectory.error.type == PolicyRefused.__name__
    assert "none of 3 samples was judged" in run.warnings[0]


async def test_a_served_model(tmp_path):
    def answer(request):
        return str(number(request.messages) + 1)

    async with OpenAIServer(answer) as server:
        policy = q.chat("m", server.base_url, usd_per_million_completion=1.0)
        run = await q.aevaluate(adder(), policy, run=tmp_path / "r")
        await policy.close()
    assert run.pass_at(1).value == 1.0
    assert run.scores.cost_usd == pytest.approx(10 * 3e-6)
    assert run.config["policy"] == "m"


async def test_what_was_asked_for_otherwise_is_in_the_line(tmp_path):
    run = await q.aevaluate(
        adder(2), q.scripted("?"), run=tmp_path / "r", sampling=q.Sampling(temperature=0.5), seed=3
    )
    line = run.failures[0].reproduce
    assert "'t0', sample_index=0, " in line
    assert "seed=3, sampling=q.Sampling(temperature=0.5))" in line


def test_the_blocking_call(tmp_path):
    run = q.evaluate(adder(), q.scripted(good), run=tmp_path / "r", samples=2)
    assert run.pass_at(2).value == 1.0


async def test_the_blocking_call_inside_a_running_loop(tmp_path):
    assert q.evaluate(adder(), q.scripted(good), run=tmp_path / "r").pass_at(1).value == 1.0


def test_a_folder_is_made_where_none_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = q.evaluate(adder(2), q.scripted(good))
    assert run.folder.parent.name == "runs"
    assert run.folder.name.startswith("adder-")


async def test_compare_two_runs(tmp_path):
    before = await q.aevaluate(adder(), q.scripted(half), samples=2, run=tmp_path / "a")
    after = await q.aevaluate(adder(), q.scripted(good), samples=3, run=tmp_path / "b")
    gain = before.compare(after)
    assert (gain.mean_a, gain.mean_b, gain.difference.value) == (0.5, 1.0, 0.5)
    assert (gain.better, gain.worse, gain.tied) == (5, 0, 5)
    assert gain.difference.excludes(0.0)
    assert gain.p_permutation == 2 / 2**5
    rows = [{"id": "z", "prompt": "1+1", "answer": "2", "split": "eval"}]
    other = await q.aevaluate(
        q.Environment(rows, right, name="other"), q.scripted(good), run=tmp_path / "c"
    )
    with pytest.raises(ConfigError, match="no judged task in common"):
        before.compare(other)


async def test_several_evals_in_one_store(tmp_path):
    """As training does: one store, an eval for each version of the policy."""
    store = Store.begin(tmp_path / "r", kind="train", identity={})
    runs = []
    for version, script in enumerate((half, good)):
        policy = q.scripted(script)
        policy.version = version
        runs.append(await q.aevaluate(adder(), policy, store=store, name="mine"))
    assert [run.purpose for run in runs] == ["mine:eval@v0", "mine:eval@v1"]
    assert [run.pass_at(1).value for run in runs] == [0.5, 1.0]
    assert runs[0].compare(runs[1]).difference.value == 0.5
    # A reader sees it while it is being written.
    assert [run.purpose for run in EvalRun.all(tmp_path / "r")] == ["mine:eval@v0", "mine:eval@v1"]
    with pytest.raises(ConfigError, match="2 evals that fit; choose one"):
        EvalRun.open(tmp_path / "r")
    seen = EvalRun.open(tmp_path / "r", purpose="mine:eval@v1")
    assert seen.scores.samples == 10
    await q.aevaluate(adder(), policy, store=store, name="mine", samples=2)
    assert seen.scores.samples == 10
    assert seen.refresh().scores.samples == 20
    store.close()


def test_nothing_there(tmp_path):
    with pytest.raises(StoreError, match="holds no run"):
        EvalRun.open(tmp_path)
    Store.begin(tmp_path / "r", kind="train", identity={}).close()
    with pytest.raises(ConfigError, match="holds 0 evals that fit"):
        EvalRun.open(tmp_path / "r")


async def test_flags_are_counted(tmp_path):
    async def suspicious(text):
        return Verdict.of(True, flags=("wrote to the grader",))

    rows = [{"prompt": "1+1", "split": "eval"}]
    env = q.Environment(rows, suspicious, name="flagged")
    run = await q.aevaluate(env, q.scripted(good), samples=2, run=tmp_path / "r")
    assert run.flagged == 2
    assert "2 samples are flagged as possible gaming" in run.warnings[0]


def test_purposes_name_split_and_version():
    assert purpose_of("bfcl", "heldout", 12) == "bfcl:heldout@v12"
    with pytest.raises(ValueError, match="nonsense"):
        purpose_of("bfcl", "nonsense")


async def test_another_environment_of_the_same_name_is_not_mixed_in(tmp_path):
    def asks(answer, word="sum"):
        return q.Environment(
            tasks=[{"id": f"t{n}", "prompt": f"{word} {n}", "answer": answer, "split": "eval"}
                   for n in range(3)],
            verifier=lambda text, answer: text == answer,
        )  # fmt: skip

    await q.aevaluate(asks("5"), q.scripted("5"), run=tmp_path / "r")
    more = await q.aevaluate(asks("5"), q.scripted("5"), samples=2, run=tmp_path / "r", resume=True)
    assert more.scores.samples == 6
    with pytest.raises(ConfigError, match="task 't0' is not what it was"):
        await q.aevaluate(asks("6"), q.scripted("5"), run=tmp_path / "r", resume=True)
    other = q.Environment(
        tasks=[{"id": "x", "prompt": "x", "answer": "5", "split": "eval"}],
        verifier=lambda text, answer: text == answer,
    )
    with pytest.raises(ConfigError, match="none of its 3 tasks"):
        await q.aevaluate(other, q.scripted("5"), run=tmp_path / "r", resume=True)


async def test_a_summary_says_why_samples_ended_in_errors(tmp_path):
    def judge(text):
        raise KeyError("k")

    env = q.Environment(
        tasks=[{"id": "t", "prompt": "p", "split": "eval"}], verifier=judge, name="broken"
    )
    run = await q.aevaluate(env, q.scripted("5"), run=tmp_path / "r", retries=0)
    assert any("1 verifier_error: " in line and "KeyError" in line for line in run.warnings)
    assert any("KeyError" in line for line in run.summary()["warnings"])


async def test_a_closed_run_is_one_file(tmp_path):
    env = q.Environment(
        tasks=[{"id": "t", "prompt": "p", "answer": "5", "split": "eval"}],
        verifier=lambda text, answer: text == answer,
    )
    with Store.begin(tmp_path / "r", kind="eval", identity={}) as store:
        await q.aevaluate(env, q.scripted("5"), store=store)
    assert not (tmp_path / "r" / "run.sqlite-wal").exists()
