"""The loop from preflight to the held-out split, on a bandit."""

import asyncio

import pytest

import quintain
from quintain.errors import ConfigError, SandboxError, TrainingError
from quintain.loop import EvalSettings, TrainRun, atrain, train
from quintain.loop.preflight import CHECKS
from quintain.messages import assistant
from quintain.policies.scripted import Scripted
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from words import says_cat, words

SMALL = {
    "steps": 9,
    "group_size": 6,
    "groups_per_step": 4,
    "eval_every": 3,
    "checkpoint_every": 3,
    "mode": "sync",
}
FEW = EvalSettings(samples=2, limit=8, heldout_samples=4, heldout_limit=8, greedy=False)


def all_splits(verifier=says_cat):
    return words(verifier, train=12, others=8)


async def go(folder, env=None, policy=None, **arguments):
    return await atrain(
        env or all_splits(),
        policy or BanditPolicy(),
        run=folder,
        evaluation=arguments.pop("evaluation", FEW),
        learner=BanditLearner(folder),
        **{**SMALL, **arguments},
    )


async def test_from_preflight_to_heldout(tmp_path):
    told = []
    policy = BanditPolicy()
    run = await go(tmp_path, policy=policy, on_event=lambda kind, data: told.append(kind))
    chosen = run.select()
    assert [c.step for c in run.candidates()] == [0, 3, 6, 9]
    assert chosen.step > 0
    assert chosen.path.is_file()
    assert policy.version == chosen.version, "the policy holds the weights that are to ship"
    assert chosen.heldout.mean().value > chosen.heldout_before.mean().value
    assert chosen.gain.tasks == 8
    assert "held-out after" in str(chosen)
    findings = {d["check"]: d["level"] for _, _, d in run.store.event_rows("preflight")}
    assert findings == dict.fromkeys(CHECKS, "ok")
    assert told.count("eval") == 4
    assert told[-1] == "selected"
    purposes = set(run.store.purposes())
    assert {"train", "eval:words@v0", "heldout:words@v0"} <= purposes
    assert sum(purpose.startswith("heldout:") for purpose in purposes) == 2
    assert len(run.metrics) == 9
    for row in run.store.rows(purpose="train"):
        assert row.key.task_id.startswith("train")


async def test_every_eval_sample_was_played_by_the_version_of_its_purpose(tmp_path):
    policy = BanditPolicy(lambda text, seed: 0.002)
    run = await go(tmp_path, policy=policy, mode="async", max_staleness=2)
    seen = 0
    for purpose in run.store.purposes():
        if "@v" in purpose:
            version = int(purpose.rsplit("@v", 1)[1])
            for trajectory in run.store.trajectories(purpose=purpose):
                assert trajectory.versions == (version,)
                seen += 1
    assert seen >= 4 * 16 + 2 * 32


async def test_resume_goes_on_and_repeats_nothing(tmp_path):
    class Stop(Exception):
        pass

    def stop_at_second(kind, data):
        if kind == "eval" and data["step"] == 6:
            raise Stop

    with pytest.raises(Stop):
        await go(tmp_path, on_event=stop_at_second)
    with Store.read(tmp_path) as store:
        before = {row.key: row for row in store.rows()}
    run = await go(tmp_path, resume=True)
    after = {row.key: row for row in run.store.rows()}
    assert all(after[key] == row for key, row in before.items())
    assert len(run.store.event_rows("preflight")) == len(CHECKS), "checked once"
    assert run.select().step in (0, 3, 6, 9)
    again = await go(tmp_path, resume=True)
    assert {row.key for row in again.store.rows()} == set(after)
    with pytest.raises(ConfigError, match="already holds a run"):
        await go(tmp_path)
    with pytest.raises(ConfigError, match="cannot resume"):
        await go(tmp_path, resume=True, group_size=5)


async def test_two_evals_are_weighed_and_the_first_has_the_last_word(tmp_path):
    async def says_dog(text):
        return text == "dog"

    other = all_splits(says_dog)
    other.name = "dogs"
    run = await go(tmp_path, evals={"cats": all_splits(), "dogs": other})
    assert run.evals == {"cats": "words", "dogs": "dogs"}
    assert all(set(candidate.scores) == {"cats", "dogs"} for candidate in run.candidates())
    assert run.select().heldout.purpose.startswith("heldout:cats@")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda env: setattr(env, "oracle", lambda task: [assistant("dog")]), "oracle earns 0"),
        (lambda env: setattr(env, "fakes", lambda task: [[assistant("cat")]]), "fake earns 1"),
    ],
)
async def test_preflight_refuses_a_verifier_that_is_wrong(tmp_path, change, message):
    env = all_splits()
    change(env)
    with pytest.raises(TrainingError, match=message):
        await go(tmp_path, env=env)


async def test_preflight_refuses_an_empty_answer_that_passes(tmp_path):
    async def anything(text):
        return True

    with pytest.raises(TrainingError, match="an empty answer earns 1"):
        await go(tmp_path, env=all_splits(anything))


async def test_preflight_refuses_a_judge_that_breaks(tmp_path):
    async def broken(text):
        raise SandboxError("no room")

    with pytest.raises(TrainingError, match="no room"):
        await go(tmp_path, env=all_splits(broken), host={"retries": 0})


async def test_preflight_finds_the_same_question_in_two_splits(tmp_path):
    env = all_splits()
    env.tasks = quintain.Environment(
        [
            {"id": "a", "prompt": "2 + 2?", "split": "train"},
            {"id": "b", "prompt": "2 + 2?", "split": "heldout"},
            {"id": "c", "prompt": "3 + 3?", "split": "eval"},
        ],
        env.verifier,
    ).tasks
    with pytest.raises(TrainingError, match=r"'b' of words:heldout is also trained on, as 'a'"):
        await go(tmp_path, env=env)


async def test_preflight_says_that_a_fixed_policy_cannot_be_trained(tmp_path):
    with pytest.raises(TrainingError, match=r"Scripted cannot be trained.*q\.local"):
        await go(tmp_path, policy=Scripted("cat"))


async def test_preflight_warns_when_there_is_nothing_to_learn_from(tmp_path):
    async def never(text):
        return text == "never said"

    env = all_splits(never)
    env.oracle = lambda task: [assistant("never said")]
    run = await go(tmp_path, env=env, steps=1)
    levels = {d["check"]: d for _, _, d in run.store.event_rows("preflight")}
    assert levels["signal"]["level"] == "warning"
    assert "teach nothing" in levels["signal"]["message"]
    assert [c.version for c in run.candidates()] == [0]


def test_synchronous_face(tmp_path):
    run = train(
        all_splits(),
        BanditPolicy(),
        run=tmp_path,
        evaluation=FEW,
        learner=BanditLearner(tmp_path),
        **{**SMALL, "steps": 1},
    )
    assert isinstance(run, TrainRun)
    with pytest.raises(ConfigError, match="group_sise"):
        train(all_splits(), BanditPolicy(), group_sise=8)
    Store.begin(tmp_path / "empty", kind="train", identity={}).close()
    empty = TrainRun(tmp_path / "empty")
    with pytest.raises(ConfigError, match="not selected"):
        empty.select()


async def test_cancelled_run_can_be_resumed(tmp_path):
    policy = BanditPolicy(lambda text, seed: 0.05)
    running = asyncio.create_task(go(tmp_path, policy=policy, mode="async"))
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await go(tmp_path, mode="async", resume=True)
    assert run.select().heldout.scores.samples == 32
