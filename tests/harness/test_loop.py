"""The plain loop: every way an episode ends, every limit, and what is kept when it is cut short."""

import asyncio
import threading

import pytest

import quintain as q
from quintain.envs.environment import Environment
from quintain.errors import ContextOverflow, EnvironmentFault, PolicyError
from quintain.harness.loop import Loop
from quintain.messages import Sampling, ToolCall, assistant, user
from quintain.policies.scripted import Scripted
from quintain.protocols import Harness
from quintain.rollouts.recorder import EpisodeRecorder
from quintain.task import Limits
from quintain.trajectory import Action, Observation, StopReason, Usage
from quintain.verdict import Verdict


def call(name="look", **arguments):
    return assistant("", ToolCall(id="c", name=name, arguments=arguments))


def used(message, *, prompt=0, sampled=0, cost=0.0, finish="stop"):
    usage = Usage(calls=1, prompt_tokens=prompt, completion_tokens=sampled, cost_usd=cost)
    return Action(message=message, usage=usage, finish=finish)


class Playing:
    """An episode that goes on until told otherwise."""

    tools = ()

    def __init__(self, *observations, reset=None):
        self.observations = list(observations)
        self.opening = reset or Observation(messages=(user("go"),))
        self.seen = []

    async def reset(self):
        if isinstance(self.opening, Exception):
            raise self.opening
        return self.opening

    async def respond(self, action):
        self.seen.append(action)
        if not self.observations:
            return Observation(messages=(user("on"),))
        observation = self.observations.pop(0)
        if isinstance(observation, BaseException):
            raise observation
        return observation

    async def close(self):
        pass


async def play(episode, policy, limits=None, sampling=None):
    record = EpisodeRecorder("session", 5, sampling or Sampling())
    stop = await Loop().play(episode, policy, limits or Limits(max_steps=6), record)
    return stop, record


def test_the_loop_is_a_harness():
    harness: Harness = Loop()
    assert harness.name == "loop"


# --- ends ---------------------------------------------------------------------------------------


async def test_done_when_the_policy_stops_calling():
    stop, record = await play(Playing(Observation(terminated=True)), Scripted("42"))
    assert stop is StopReason.DONE
    assert record.steps == 1


async def test_terminated_when_the_episode_ends_it_over_a_call():
    stop, _ = await play(Playing(Observation(), Observation(terminated=True)), Scripted(call()))
    assert stop is StopReason.TERMINATED


async def test_terminated_before_the_first_action():
    opening = Observation(messages=(user("nothing to do"),), terminated=True)
    stop, record = await play(Playing(reset=opening), Scripted(PolicyError))
    assert stop is StopReason.TERMINATED
    assert record.steps == 0
    assert record.opening == opening


async def test_the_conversation_grows_by_action_and_observation():
    seen = []

    def script(messages, tools, seed):
        seen.append([m.text for m in messages])
        return f"say {len(seen)}"

    episode = Playing(
        Observation(messages=(user("a"),)), Observation(), Observation(terminated=True)
    )
    await play(episode, Scripted(script))
    assert seen == [["go"], ["go", "say 1", "a"], ["go", "say 1", "a", "say 2"]]


async def test_seeds_differ_by_step_and_repeat_by_rollout():
    runs = []
    for _ in range(2):
        seeds = []

        def script(messages, tools, seed, seeds=seeds):
            seeds.append(seed)
            return "x"

        await play(Playing(), Scripted(script))
        runs.append(seeds)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 6


# --- limits -------------------------------------------------------------------------------------


async def test_max_steps():
    stop, record = await play(Playing(), Scripted("on"), Limits(max_steps=3))
    assert (stop, record.steps) == (StopReason.MAX_STEPS, 3)


async def test_an_end_at_the_last_step_is_an_end():
    stop, _ = await play(Playing(Observation(terminated=True)), Scripted("x"), Limits(max_steps=1))
    assert stop is StopReason.DONE


async def test_max_tokens_over_the_episode_and_within_each_call():
    asked = []

    class Talker(Scripted):
        async def act(self, messages, *, tools, sampling, seed, session):
            asked.append(sampling.max_tokens)
            return used(assistant("x"), sampled=40)

    limits = Limits(max_steps=9, max_tokens=100)
    stop, record = await play(Playing(), Talker("x"), limits, Sampling(max_tokens=50))
    assert (stop, record.steps) == (StopReason.MAX_TOKENS, 3)
    assert asked == [50, 50, 20]
    asked.clear()
    await play(Playing(), Talker("x"), limits)
    assert asked == [100, 60, 20]


async def test_an_answer_cut_by_its_length_is_no_end():
    cut = used(assistant("The answ"), sampled=5, finish="length")
    stop, _ = await play(Playing(Observation(terminated=True)), Scripted(cut))
    assert stop is StopReason.MAX_TOKENS


async def test_max_context_counts_prompt_and_answer_of_one_call():
    actions = [used(assistant("x"), prompt=p, sampled=10) for p in (50, 89, 90)]
    stop, record = await play(Playing(), Scripted(actions), Limits(max_context_tokens=100))
    assert (stop, record.steps) == (StopReason.MAX_CONTEXT, 3)


async def test_a_conversation_that_no_longer_fits_is_a_limit():
    def script(messages, tools, seed):
        if len(messages) > 3:
            raise ContextOverflow("2049 tokens of 2048")
        return "x"

    stop, record = await play(Playing(), Scripted(script))
    assert (stop, record.steps) == (StopReason.MAX_CONTEXT, 2)
    assert [(e.kind, e.data) for e in record.events] == [
        ("policy.context_overflow", {"message": "2049 tokens of 2048"})
    ]


async def test_cost():
    stop, record = await play(
        Playing(), Scripted(used(assistant("x"), cost=0.03)), Limits(cost_usd=0.05)
    )
    assert (stop, record.steps) == (StopReason.COST, 2)


async def test_malformed_calls_add_up():
    episode = Playing(*(Observation(malformed=n) for n in (1, 0, 2, 5)))
    stop, record = await play(episode, Scripted(call()), Limits(max_malformed=3))
    assert (stop, record.steps, record.malformed) == (StopReason.MALFORMED, 3, 3)


# --- faults -------------------------------------------------------------------------------------


async def test_whose_fault_is_whose():
    def broken(messages, tools, seed):
        raise ValueError("no server")

    with pytest.raises(PolicyError, match="act: ValueError: no server"):
        await play(Playing(), Scripted(broken))
    with pytest.raises(EnvironmentFault, match="respond: ValueError: no world"):
        await play(Playing(ValueError("no world")), Scripted("x"))
    with pytest.raises(EnvironmentFault, match="reset: ValueError: no board"):
        await play(Playing(reset=ValueError("no board")), Scripted("x"))


async def test_what_was_sampled_is_kept_when_the_response_fails():
    record = EpisodeRecorder("session", 5, Sampling())
    action = used(assistant("paid for"), sampled=7)
    with pytest.raises(EnvironmentFault):
        await Loop().play(Playing(ValueError()), Scripted(action), Limits(), record)
    assert [step.action for step in record.taken] == [action]
    assert record.usage.completion_tokens == 7


async def test_what_was_sampled_is_kept_when_the_response_is_cancelled():
    responding = asyncio.Event()

    class Slow(Playing):
        async def respond(self, action):
            responding.set()
            await asyncio.sleep(3600)

    record = EpisodeRecorder("session", 5, Sampling())
    task = asyncio.create_task(Loop().play(Slow(), Scripted("said"), Limits(), record))
    await responding.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [step.action.message.text for step in record.taken] == ["said"]
    assert record.taken[0].observation == Observation()


# --- the whole walk -----------------------------------------------------------------------------


def judged(trajectory):
    """Passes whoever said the word, whatever ended the episode."""
    said = any("word" in step.action.message.text for step in trajectory.steps)
    return Verdict.of(said, f"after {len(trajectory.steps)} steps")


def look() -> str:
    """Looks."""
    return "nothing"


ROWS = [{"id": "one", "prompt": "say the word", "split": "train"}]
WORD = assistant("word", ToolCall(id="c", name="look"))


@pytest.mark.parametrize(
    ("script", "limits", "stop"),
    [
        ("word", Limits(), "done"),
        (WORD, Limits(max_steps=2), "max_steps"),
        (used(WORD, sampled=10), Limits(max_tokens=15), "max_tokens"),
        (used(WORD, prompt=90, sampled=20), Limits(max_context_tokens=100), "max_context"),
        (used(WORD, cost=1.0), Limits(cost_usd=1.5), "cost"),
        (assistant("word", ToolCall(id="c", name="lok")), Limits(max_malformed=2), "malformed"),
    ],
)
async def test_the_verifier_judges_whatever_ended_the_episode(script, limits, stop):
    env = Environment(ROWS, judged, tools=[look], limits=limits)
    done = await q.arollout(env, Scripted(script))
    assert (done.stop, done.outcome, done.reward) == (stop, "solved", 1.0)
    assert done.stop.truncated == (stop != "done")


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_wall_during_a_tool_keeps_the_action_and_judges(kind):
    release = threading.Event()

    def stuck() -> str:
        """Never comes back."""
        release.wait()
        return "late"

    async def sleeping() -> str:
        """Never comes back."""
        await asyncio.sleep(3600)
        return "late"

    tool = q.tool(stuck if kind == "sync" else sleeping, name="look")
    env = Environment(ROWS, judged, tools=[tool], limits=Limits(wall_s=0.3))
    try:
        done = await q.arollout(env, Scripted(WORD))
    finally:
        release.set()
    assert (done.stop, done.outcome) == ("wall", "solved")
    assert done.verdict.explanation == "after 1 steps"
    assert done.steps[0].action.message == WORD
    assert done.steps[0].observation == Observation()
    assert done.timing.env_s > 0.2


async def test_the_wall_during_sampling_judges_what_there_is():
    env = Environment(ROWS, judged, limits=Limits(wall_s=0.2))
    done = await q.arollout(env, Scripted("word", latency_s=3600.0))
    assert (done.stop, done.outcome, len(done.steps)) == ("wall", "failed", 0)


async def test_the_wall_over_a_command_in_the_sandbox_leaves_it_usable_for_the_judge():
    async def judge(trajectory, sandbox):
        run = await sandbox.exec(["cat", "made"])
        return run.text == "made\n"

    command = "echo made > made; sleep 3600"
    slow = assistant("", ToolCall(id="c", name="shell", arguments={"command": command}))
    limits = Limits(wall_s=1.5)
    env = Environment(ROWS, judge, tools=[q.tools.shell], sandbox=True, limits=limits)
    done = await q.arollout(env, Scripted(slow))
    assert (done.stop, done.outcome) == ("wall", "solved"), done.error
