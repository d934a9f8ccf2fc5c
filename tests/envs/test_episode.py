"""The default episode and `Environment`: calls answered in order, mistakes told, nothing shared."""

import pytest

import quintain as q
from quintain.envs.environment import Environment
from quintain.envs.episode import ToolEpisode
from quintain.envs.tools import as_tools
from quintain.errors import ConfigError, RegistryError, SandboxError
from quintain.messages import ToolCall, assistant, user
from quintain.policies.scripted import Scripted
from quintain.task import Limits, PublicTask, SandboxSpec, Task
from quintain.trajectory import Action, Observation


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def note(text: str, world: dict, context) -> str:
    """Writes something down."""
    world["notes"].append(text)
    context.event("note", {"n": len(world["notes"])})
    return str(world["notes"])


def episode(*tools, world=None):
    return ToolEpisode(
        (user("go"),),
        as_tools(tools),
        task=PublicTask(id="t", prompt=(user("go"),)),
        world=world,
        sandbox=None,
        seed=1,
    )


def action(*calls, text=""):
    made = [
        call
        if isinstance(call, ToolCall)
        else ToolCall(id=f"c{n}", name=call[0], arguments=call[1])
        for n, call in enumerate(calls)
    ]
    return Action(message=assistant(text, *made))


async def test_the_prompt_comes_first():
    observation = await episode().reset()
    assert observation.messages == (user("go"),)
    assert not observation.terminated


async def test_an_action_without_calls_ends_the_episode():
    assert (await episode(add).respond(action(text="done"))).terminated
    assert (await episode(add).respond(Action(message=assistant("")))).terminated


async def test_calls_are_answered_in_their_order():
    observation = await episode(add).respond(
        action(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), text="both")
    )
    (message,) = observation.messages
    assert message.role == "tool"
    assert [(r.call_id, r.name, r.text) for r in message.tool_results] == [
        ("c0", "add", "3"),
        ("c1", "add", "7"),
    ]
    assert not observation.terminated
    assert observation.malformed == 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("sub", {}), "there is no tool 'sub'; available: add"),
        (("add", {"a": 1}), "wrong arguments for add: b: Field required"),
        (("add", {"a": 1, "b": "x"}), "b: Input should be a valid integer"),
        (ToolCall(id="c0", name="add", error="expected ',' at 7", raw="{"), "expected ',' at 7"),
        (ToolCall(id="c0", name="", error="a call holds one JSON object"), "one JSON object"),
    ],
)
async def test_a_malformed_call_is_told_and_counted_and_the_others_are_made(call, told):
    observation = await episode(add).respond(action(call, ("add", {"a": 1, "b": 1})))
    first, second = observation.messages[0].tool_results
    assert first.is_error
    assert told in first.text
    assert second.text == "2"
    assert observation.malformed == 1
    assert not observation.terminated


async def test_without_tools_a_call_is_told_that_there_are_none():
    observation = await episode().respond(action(("add", {})))
    assert observation.messages[0].tool_results[0].text == (
        "there is no tool 'add'; available: none"
    )


async def test_a_failing_tool_is_no_malformed_call():
    def fails():
        raise ValueError("no")

    observation = await episode(fails).respond(action(("fails", {})))
    assert observation.malformed == 0
    assert observation.messages[0].tool_results[0].is_error


async def test_events_are_handed_over_once():
    playing = episode(note, world={"notes": []})
    first = await playing.respond(action(("note", {"text": "a"})))
    second = await playing.respond(action(("note", {"text": "b"})))
    assert [e.data for e in first.events] == [{"n": 1}]
    assert [e.data for e in second.events] == [{"n": 2}]
    assert second.messages[0].tool_results[0].text == "['a', 'b']"


async def test_two_episodes_of_one_task_do_not_share_a_world():
    world = {"notes": []}
    for _ in range(2):
        observation = await episode(note, world=world).respond(action(("note", {"text": "a"})))
        assert observation.messages[0].tool_results[0].text == "['a']"
    assert world == {"notes": []}


# --- environment --------------------------------------------------------------------------------

ROWS = [{"id": "one", "prompt": "1+1?", "answer": "2", "split": "train"}]


def same(text, answer):
    return text == answer


def test_arguments_of_the_wrong_kind_are_refused():
    with pytest.raises(ConfigError, match="tool 'shell' needs a sandbox"):
        Environment(ROWS, same, tools=[q.tools.shell])
    with pytest.raises(ConfigError, match="sandbox is a SandboxSpec, True or None, got 'yes'"):
        Environment(ROWS, same, sandbox="yes")
    with pytest.raises(ConfigError, match="a verifier is"):
        Environment(ROWS, 5)
    with pytest.raises(RegistryError, match="no verifier named 'anser'"):
        Environment(ROWS, "anser")
    with pytest.raises(ConfigError, match="for a file use"):
        Environment("rows.jsonl", same)


def test_sandbox_true_is_the_default_spec():
    assert Environment(ROWS, same, sandbox=True).sandbox == SandboxSpec()
    assert Environment(ROWS, same, sandbox=False).sandbox is None


async def test_a_plain_function_and_a_list_make_an_environment():
    env = Environment(ROWS, same)
    good = await q.arollout(env, Scripted("2"))
    bad = await q.arollout(env, Scripted("3"), "one")
    assert (good.outcome, good.reward) == ("solved", 1.0)
    assert (bad.outcome, bad.reward) == ("failed", 0.0)


async def test_the_system_prompt_stands_first():
    env = Environment(ROWS, same, system_prompt="Be brief.")
    done = await q.arollout(env, Scripted("2"))
    assert [(m.role, m.text) for m in done.opening.messages] == [
        ("system", "Be brief."),
        ("user", "1+1?"),
    ]


async def test_an_episode_of_ones_own():
    class Hangman:
        tools = ()

        def __init__(self, task, world, sandbox, seed):
            self.word = world["word"]

        async def reset(self):
            return Observation(messages=(user("guess"),))

        async def respond(self, action):
            if action.message.text == self.word:
                return Observation(terminated=True)
            return Observation(messages=(user("no"),))

        async def close(self):
            pass

    row = {"prompt": "p", "answer": "moon", "world": {"word": "moon"}, "split": "train"}
    env = Environment([row], same, episode=Hangman, limits=Limits(max_steps=3))
    done = await q.arollout(env, Scripted(["sun", "moon"]))
    assert (len(done.steps), done.stop, done.reward) == (2, "done", 1.0)
    late = await q.arollout(env, Scripted(["sun", "star", "sky", "moon"]))
    assert (len(late.steps), late.stop, late.reward) == (3, "max_steps", 0.0)


async def test_an_episode_may_be_made_asynchronously_and_owns_its_world():
    async def make(task, world, sandbox, seed):
        world["notes"].append("begun")
        return ToolEpisode(
            task.prompt, as_tools([note]), task=task, world=world, sandbox=sandbox, seed=seed
        )

    row = {"id": "t", "prompt": "p", "answer": "x", "world": {"notes": []}, "split": "train"}
    env = Environment([row], same, episode=make)
    call = ToolCall(id="c", name="note", arguments={"text": "a"})
    for _ in range(2):
        done = await q.arollout(env, Scripted([assistant("", call), "x"]), "t")
        assert done.reward == 1.0
        assert done.steps[0].observation.messages[0].tool_results[0].text == "['begun', 'a']"


async def test_an_episode_that_cannot_be_made_is_the_hosts_fault():
    def broken(task, world, sandbox, seed):
        raise OSError("no board")

    done = await q.arollout(Environment(ROWS, same, episode=broken), Scripted("2"), retries=0)
    assert (done.outcome, done.reward) == ("infra_error", None)
    assert done.error.type == "EnvironmentFault"
    assert "no board" in done.error.message


async def test_a_broken_sandbox_under_a_tool_is_the_hosts_fault():
    async def broken(n: int) -> int:
        """Breaks."""
        raise SandboxError("the node is gone")

    call = ToolCall(id="c", name="broken", arguments={"n": 1})
    env = Environment(ROWS, same, tools=[broken])
    done = await q.arollout(env, Scripted(assistant("", call)), retries=0)
    assert (done.outcome, done.reward, done.stop) == ("infra_error", None, "error")
    assert done.steps[0].action.message.tool_calls == (call,)


async def test_the_tasks_own_sandbox_and_files_reach_the_tool():
    task = Task(
        id="t",
        prompt="p",
        answer="ok",
        split="train",
        files={"in.txt": "hello"},
        sandbox=SandboxSpec(env={"COLOUR": "blue"}),
    )
    call = ToolCall(id="c", name="shell", arguments={"command": "cat in.txt; echo $COLOUR"})
    env = Environment([task], same, tools=[q.tools.shell], sandbox=True)
    done = await q.arollout(env, Scripted([assistant("", call), "ok"]))
    assert done.reward == 1.0, done.error
    assert done.steps[0].observation.messages[0].tool_results[0].text == "helloblue"


async def test_the_python_tool_runs_in_the_sandbox():
    code = f"import os\nprint(6 * 7, os.path.exists({__file__!r}))"
    call = ToolCall(id="c", name="python", arguments={"code": code})
    env = Environment(ROWS, same, tools=[q.tools.python], sandbox=True)
    done = await q.arollout(env, Scripted([assistant("", call), "2"]))
    assert done.steps[0].observation.messages[0].tool_results[0].text == "42 False"
