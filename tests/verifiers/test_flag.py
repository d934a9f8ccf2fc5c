"""Flags of episodes."""

import pytest

import quintain as q
from quintain.errors import ConfigError, TaskError
from quintain.task import Task
from quintain.verdict import Outcome
from quintain.verifiers.flag import Flag

SECRET = "0123456789abcdef"


async def test_the_flag_of_the_episode_and_no_other(bench):
    verifier = Flag(secret=SECRET)
    flag = verifier.of("t", 0)
    assert flag == Flag(secret=SECRET).of("t", 0) != Flag().of("t", 0)
    for text in (flag, f"The flag is {flag}.", f"{flag}\n\n{flag}"):
        assert (await bench.judge(verifier, text)).passed
    inner = flag[5:-1]
    other = verifier.of("t", 1)
    for text in (
        "",
        inner,
        flag[:-1],
        flag.upper(),
        f"flag{{{inner[:-1]}}}",
        f"flag{{{inner}0}}",
        f"flag{{ {inner} }}",
        other,
        f"{flag} or {other}",
        " ".join(f"flag{{{n:032x}}}" for n in range(1000)),
    ):
        assert (await bench.judge(verifier, text)).outcome is Outcome.FAILED, text


async def test_a_flag_of_another_episode_is_a_leak(bench):
    verifier = Flag()
    for other in (verifier.of("t", 5), verifier.of("u", 0)):
        verdict = await bench.judge(verifier, other)
        assert verdict.reward == 0.0
        assert "leak" in verdict.flags[0]
    assert (await bench.judge(verifier, "flag{unknown}")).flags == ()


async def test_planted_by_an_environment():
    """What the episode plants is what the verifier expects, and every sample has its own."""
    verifier = Flag()
    planted = []

    class Hunt:
        tools = ()

        def __init__(self, task, seed):
            self.flag = verifier.of(task.id, seed)
            planted.append(self.flag)

        async def reset(self):
            from quintain.messages import user
            from quintain.trajectory import Observation

            return Observation(messages=(user("Find it."),))

        async def respond(self, action):
            from quintain.trajectory import Observation

            return Observation(terminated=True)

        async def close(self):
            pass

    env = q.Environment(
        [{"prompt": "Find it."}], verifier, episode=lambda t, w, s, seed: Hunt(t, seed)
    )
    for index in range(2):
        found = q.scripted(lambda messages, tools, seed: planted[-1])
        assert (await q.arollout(env, found, sample_index=index)).outcome is Outcome.SOLVED
    stale = await q.arollout(env, q.scripted(planted[0]), sample_index=1)
    assert stale.outcome is Outcome.FAILED
    assert stale.verdict.flags


async def test_fixed_flags(bench):
    assert (await bench.judge(Flag(), "flag{abcdef}", {"flag": "flag{abcdef}"})).passed
    assert (await bench.judge(Flag(), " s3cret-word ", "s3cret-word")).passed
    assert not (await bench.judge(Flag(), "it is s3cret-word or so", "s3cret-word")).passed
    for fields in (
        {"answer": "short"},
        {"answer": 5},
        {"answer": "flag{abcdef}", "files": {"x": "flag{abcdef}"}},
        {"answer": "flag{abcdef}", "prompt": "It is flag{abcdef}."},
        {"answer": "flag{abcdef}", "metadata": {"x": ["flag{abcdef}"]}},
    ):
        with pytest.raises(TaskError):
            Flag().check_gold(Task(**{"id": "t", "prompt": "?", **fields}))


def test_what_is_refused():
    for options in ({"prefix": "a b"}, {"secret": "short"}):
        with pytest.raises(ConfigError):
            Flag(**options)
