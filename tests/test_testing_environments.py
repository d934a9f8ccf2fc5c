"""`check_environment` finds what it is there for: each of these environments breaks a promise."""

import itertools
import json

import pytest

import quintain as q
from quintain.envs.environment import Environment
from quintain.envs.episode import ToolEpisode
from quintain.envs.tasks import Tasks
from quintain.messages import ToolCall, assistant
from quintain.task import Limits, Split, Task
from quintain.testing import check_environment
from quintain.trajectory import Observation

COUNTER = itertools.count()


def rows(n=3):
    return [
        Task(id=f"{split}-{i}", prompt=f"{split} {i}?", answer={"gold": f"{split}{i}"}, split=split)
        for split in Split
        for i in range(n)
    ]


def exact(text, answer):
    return text == answer["gold"]


def gold(task):
    return [task.answer["gold"]]


def calls_then_gold(name, **arguments):
    return lambda task: [
        assistant("", ToolCall(id="c", name=name, arguments=arguments)),
        *gold(task),
    ]


async def expect(message, environment, **arguments):
    with pytest.raises(AssertionError, match=message):
        await check_environment(environment, tasks=1, **arguments)


async def test_a_sound_environment_passes():
    fakes = lambda task: [["gold"], [task.prompt[0].text]]  # noqa: E731
    await check_environment(Environment(rows(), exact, oracle=gold, fakes=fakes), tasks=1)


async def test_rewards():
    await expect(
        r"saying nothing on task train-0 earns 0, got 1.0",
        Environment(rows(), lambda text, answer: True),
    )
    await expect(
        r"the oracle on task train-0 earns 1, got 0.0",
        Environment(rows(), exact, oracle=lambda task: ["no"]),
    )
    await expect(
        r"fake 1 on task train-0 earns 0, got 1.0",
        Environment(rows(), exact, fakes=lambda task: [["x"], gold(task)]),
    )
    await expect(
        r"saying nothing on task train-0: .*VerifierError",
        Environment(rows(), lambda text, answer: 1 / 0),
    )


class Reordered(Tasks):
    def split(self, split):
        found = list(super().split(split))
        return iter(found if next(COUNTER) % 2 else found[::-1])


class Forgetful(Tasks):
    def get(self, task_id):
        return super().get("train-0")


async def test_tasks():
    twice = [Task(id=f"{s}", prompt="the same", answer={}, split=s) for s in ("train", "heldout")]
    await expect("train in the train split and heldout in the heldout split ask the same",
                 Environment(twice, exact))  # fmt: skip
    await expect("another order", Environment(Reordered(rows()), exact))
    await expect(r"get\('train-1'\) gives another task", Environment(Forgetful(rows()), exact))
    spoken = [Task(id="t", prompt=(assistant("I begin"),), split="train")]
    await expect("task t ends with the policy's turn", Environment(spoken, exact))
    fresh = lambda: Environment(rows(next(COUNTER) + 10), exact)  # noqa: E731
    await expect("with other tasks", Environment(rows(), exact), again=fresh)


class Leaky(ToolEpisode):
    """Tells what only the host should know."""

    async def reset(self):
        first = await super().reset()
        told = q.Message(role="user", content=json.dumps(self._context.world))
        return Observation(messages=(*first.messages, told))


async def test_a_world_in_the_prompt():
    def leaky(task, world, sandbox, seed):
        return Leaky(task.prompt, (), task=task, world=world, sandbox=sandbox, seed=seed)

    await expect("the policy sees the world of task train-0",
                 Environment(rows(), exact, episode=leaky))  # fmt: skip


async def test_a_world_in_a_tool_result():
    def peek(world) -> str:
        """Peeks."""
        return str(world)

    await expect(
        "the policy sees the world",
        Environment(rows(), exact, tools=[peek], oracle=calls_then_gold("peek")),
    )


async def test_a_world_on_a_command_line():
    async def wait(world, sandbox) -> str:
        """Waits."""
        await sandbox.exec(["sh", "-c", "sleep 1", str(world)])
        return "done"

    await expect(
        r"(?s)the world of task train-0 is in the sandbox: .*/proc/\d+/cmdline",
        Environment(rows(), exact, tools=[wait], sandbox=True, oracle=calls_then_gold("wait")),
    )


async def test_an_answer_in_the_judges_environment_variables():
    async def judge(text, answer, sandbox):
        await sandbox.exec(["sleep", "1"], env={"ANSWER": str(answer)})
        return text == answer["gold"]

    await expect(
        r"the answer of task train-0 is in the sandbox: .*/proc/\d+/environ",
        Environment(rows(), judge, sandbox=True, oracle=gold),
    )


async def test_hidden_files_in_the_candidates_sandbox():
    async def judge(text, answer, task, sandbox):
        for path, data in task.hidden_files.items():
            await sandbox.write(f"tests/{path}", data)
        return text == answer["gold"]

    await expect(
        r"the hidden_files of task train-0 is in the sandbox: .*/tests/canary\.txt",
        Environment(rows(), judge, sandbox=True, oracle=gold),
    )


async def test_an_episode_that_ignores_its_limits_is_cut():
    class Endless(ToolEpisode):
        async def respond(self, action):
            return Observation(messages=(q.Message(role="user", content="on"),))

    def endless(task, world, sandbox, seed):
        return Endless(task.prompt, (), task=task, world=world, sandbox=sandbox, seed=seed)

    env = Environment(rows(), exact, episode=endless, limits=Limits(max_steps=4))
    oracle = lambda task: gold(task) * 4  # noqa: E731
    fakes = lambda task: [["x"] * 4]  # noqa: E731
    await check_environment(env, oracle=oracle, fakes=fakes, tasks=1)


async def test_an_episode_that_cannot_be_closed_twice():
    class Once(ToolEpisode):
        closed = False

        async def close(self):
            assert not self.closed, "closed before"
            self.closed = True

    def once(task, world, sandbox, seed):
        return Once(task.prompt, (), task=task, world=world, sandbox=sandbox, seed=seed)

    await expect("closed before", Environment(rows(), exact, episode=once))
