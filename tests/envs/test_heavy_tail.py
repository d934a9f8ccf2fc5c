"""Heavy-tailed jobs: latencies as told, the same for a seed, and a verdict on the result alone."""

import pytest

import quintain as q
from quintain import registry
from quintain.envs.heavy_tail import JobEpisode, Latency
from quintain.errors import ConfigError
from quintain.policies.scripted import Scripted


def test_one_in_twenty_is_slow_and_seeds_decide():
    latency = Latency(scale=100)
    drawn = [latency.draw(seed) for seed in range(4000)]
    slow = [wait_s for wait_s, is_slow in drawn if is_slow]
    fast = [wait_s for wait_s, is_slow in drawn if not is_slow]
    assert 0.035 < len(slow) / len(drawn) < 0.065
    assert all(4.8 <= wait_s <= 7.2 for wait_s in slow)
    assert all(0.08 <= wait_s <= 0.12 for wait_s in fast)
    assert drawn == [latency.draw(seed) for seed in range(4000)]
    assert Latency().longest_s == pytest.approx(720)


async def test_the_oracle_passes_and_words_start_the_job_too():
    env = registry.environments.get("heavy-tail")(scale=10_000, slow_s=10.0)
    task = next(iter(env.tasks.split("eval")))
    done = await q.arollout(env, Scripted(list(env.oracle(task))), task)
    assert done.reward == 1.0
    assert [event.kind for event in done.events] == ["job"]
    spoken = await q.arollout(env, Scripted(["go on then", f"The answer is {task.answer}"]), task)
    assert spoken.reward == 1.0
    for fake in env.fakes(task):
        assert (await q.arollout(env, Scripted(list(fake)), task)).reward == 0.0
    assert (await q.arollout(env, Scripted(""), task)).reward == 0.0


async def test_the_result_is_not_in_what_the_policy_sees_first():
    env = registry.environments.get("heavy-tail")(scale=10_000)
    for task in env.tasks.split("eval"):
        assert str(task.answer) not in task.prompt[0].text.replace(str(task.world["job"]), "")
    episode = JobEpisode(task.public(), task.world, 0, Latency(scale=1000, slow_share=0.0))
    opening = await episode.reset()
    assert opening.messages == task.prompt


@pytest.mark.parametrize(
    ("options", "message"),
    [({"slow_share": 2.0}, "slow_share"), ({"scale": 0.0}, "scale is above 0")],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        registry.environments.get("heavy-tail")(**options)
