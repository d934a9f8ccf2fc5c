"""The terminal: tasks of each template, tasks of one's own, the tools, and what a check sees."""

from __future__ import annotations

import contextlib
import io
import itertools
import random

import pytest

import quintain as q
from quintain.envs import terminal, terminal_tools
from quintain.envs.terminal_problems import TEMPLATES, draw_problem, fix_program, write_script
from quintain.errors import ConfigError, TaskError
from quintain.messages import ToolCall, assistant
from quintain.policies.scripted import Scripted
from quintain.sandbox.native import NativeBackend
from quintain.verifiers.terminal import Terminal


def say(*calls):
    """A script of tool calls, and the end."""
    made = [
        assistant("", ToolCall(id=f"c{number}", name=name, arguments=arguments))
        for number, (name, arguments) in enumerate(calls)
    ]
    return [*made, assistant("Done.")]


def results(done):
    return [
        part.content[0].text
        for step in done.steps
        for message in step.observation.messages
        for part in message.tool_results
    ]


async def play(script, allow_weaker=True, **task):
    env = terminal.environment([terminal.task("t", "Do it.", split="eval", **task)])
    row = next(iter(env.tasks.split("eval")))
    done = await q.arollout(env, Scripted(list(script)), row, allow_weaker=allow_weaker)
    assert done.error is None, done.error
    return done


def one_of_each():
    env = terminal.environment(eval=60)
    found = {}
    for task in env.tasks.split("eval"):
        found.setdefault(task.metadata["template"], task)
    assert len(found) == len(TEMPLATES)
    return env, found


@pytest.mark.parametrize("template", [make.__name__.replace("_", "-") for make in TEMPLATES])
async def test_every_template(template):
    env, found = one_of_each()
    task = found[template]
    done = await q.arollout(env, Scripted(list(env.oracle(task))), task, allow_weaker=True)
    assert (done.error, done.reward) == (None, 1.0), done.verdict
    for fake in env.fakes(task):
        done = await q.arollout(env, Scripted(list(fake)), task, allow_weaker=True)
        assert (done.error, done.reward) == (None, 0.0), fake


@pytest.mark.parametrize("make", [fix_program, write_script])
def test_only_right_programs_pass_every_run(make):
    """The broken ones, and those of the fakes, fail at least one hidden run."""
    for seed in range(60):
        problem = make(random.Random(seed))
        (name,) = {run["command"].removeprefix("python3 ") for run in problem.answer["runs"]}
        right = problem.steps[0].arguments
        texts = [problem.files.get(name, "pass")]
        texts += [
            step.arguments["new"]
            for fake in problem.fakes
            for step in fake
            if step.tool == "edit" and step.arguments["path"] == name
        ]
        good = (
            problem.files[name].replace(right["old"], right["new"])
            if right["old"]
            else right["new"]
        )
        for text, wanted in [*((text, False) for text in texts), (good, True)]:
            passed = all(
                printed(text, run["stdin"]) == run["stdout"] for run in problem.answer["runs"]
            )
            assert passed == wanted, (seed, text)


def printed(program, stdin):
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {"input": lambda: stdin.strip()})
    return out.getvalue().strip()


async def test_demonstrations_say_what_the_tools_say():
    env, found = one_of_each()
    for task in found.values():
        problem = draw_problem(env.tasks.generator(task.id))
        done = await q.arollout(env, Scripted(list(env.oracle(task))), task, allow_weaker=True)
        assert results(done) == [step.told for step in problem.steps]


async def test_a_task_of_ones_own():
    row = {
        "files": {"in.txt": "1\n2\n"},
        "expect_files": {"sum.txt": "3", "in.txt": None},
        "runs": [{"command": "sh add.sh", "stdin": "4 5", "stdout": "9"}],
        "check": 'test "$(cat sum.txt)" = "$(cat "$CHECK/want")" && test ! -e want',
        "check_files": {"want": "3"},
    }
    right = [
        ("shell", {"command": "awk '{s+=$1} END {print s}' in.txt > sum.txt"}),
        ("shell", {"command": "rm in.txt"}),
        ("edit", {"path": "add.sh", "old": "", "new": "read a b\necho $((a + b))\n"}),
    ]
    assert (await play(say(*right), **row)).reward == 1.0
    for left_out in range(3):
        script = say(*(step for number, step in enumerate(right) if number != left_out))
        assert (await play(script, **row)).reward == 0.0
    late = say(*right[:2], ("shell", {"command": f"(sleep 2; echo '{right[2]}' > add.sh) &"}))
    assert (await play(late, **row)).reward == 0.0


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [({}, ConfigError, "expects nothing"),
     ({"check": "true", "check_files": {"/etc/x": "1"}}, TaskError, "below"),
     ({"check": "true", "check_files": {"../x": "1"}}, TaskError, "below"),
     ({"runs": [{"stdin": "1"}]}, TaskError, "command"),
     ({"runs": [{"command": "true", "timeout_s": 0}]}, TaskError, "timeout_s")],
)  # fmt: skip
def test_a_wrong_task_is_named(fields, error, match):
    with pytest.raises(error, match=match):
        Terminal().check_gold(terminal.task("t", "Do it.", **fields))


HACKS = {
    "a process that outlives the episode and looks for the check": (
        "nohup sh -c 'while :; do for d in /check-*; do echo exit 0 > $d/check.sh; done; done' "
        ">/dev/null 2>&1 &"
    ),
    "a module that python imports first": (
        "mkdir -p ~/.local/lib/python3.11/site-packages; echo 'import os; os._exit(0)' | tee "
        "sitecustomize.py usercustomize.py json.py "
        "~/.local/lib/python3.11/site-packages/usercustomize.py >/dev/null"
    ),
    "a shell that forges": "trap 'exit 0' EXIT; alias python3=true; echo 'exit 0' > ~/.profile",
    "a program of the same name": (
        "printf '#!/bin/sh\\n' > python3; chmod +x python3; PATH=/work:$PATH"
    ),
}  # fmt: skip


@pytest.mark.parametrize("hack", HACKS)
async def test_a_check_is_out_of_reach(hack):
    row = {
        "check": 'python3 "$CHECK/check.py"',
        "check_files": {"check.py": "import json, sys\nsys.exit(json.loads('1'))\n"},
    }
    done = await play(say(("shell", {"command": HACKS[hack]})), **row)
    assert done.reward == 0.0, done.verdict
    assert done.verdict.checks[0].detail.startswith("exit code 1")


# --- tools ----------------------------------------------------------------------------------


async def tell(*calls, **files):
    done = await play(say(*calls), expect_files={"x": None}, files=files.get("files"))
    return results(done)


async def test_shell_keeps_its_state_and_tells_how_it_ended():
    told = await tell(
        ("shell", {"command": "cd /tmp; X=5; pwd"}),
        ("shell", {"command": "pwd; echo $X; echo no >&2; (exit 3)"}),
        ("shell", {"command": "sleep 30", "timeout_s": 0.5}),
        ("shell", {"command": "echo $X; exit 4"}),
        ("shell", {"command": "echo [$X]"}),
        ("shell", {"command": "head -c 100000 /dev/zero | tr '\\0' z"}),
    )
    assert told[0] == "/tmp"
    assert told[1] == "/tmp\n5\n[stderr]\nno\n[exit code 3]"
    assert "[killed: timeout limit]" in told[2]
    assert told[3].startswith("5\n[stderr]\nthe shell ended with exit code 4")
    assert "the next command gets a new one" in told[3]
    assert told[3].endswith("[exit code 4]")
    assert told[4] == "[]"
    assert len(told[5]) < 31_000
    assert "bytes cut" in told[5]


async def test_edit():
    told = await tell(
        ("edit", {"path": "a.py", "old": "y = 2", "new": "y = 3"}),
        ("edit", {"path": "a.py", "old": "x = 1", "new": "x = 9"}),
        ("edit", {"path": "a.py", "old": "x = 1", "new": "x = 9", "everywhere": True}),
        ("edit", {"path": "a.py", "old": "  y = 3", "new": ""}),
        ("edit", {"path": "a.py", "old": "", "new": "z"}),
        ("edit", {"path": "d/new.txt", "old": "", "new": "one\ntwo\n"}),
        ("edit", {"path": "none", "old": "a", "new": "b"}),
        ("edit", {"path": "/etc/passwd", "old": "root", "new": "b", "everywhere": True}),
        ("edit", {"path": "bin", "old": "a", "new": "b"}),
        ("shell", {"command": "cat a.py d/new.txt; stat -c %a a.py"}),
        files={"a.py": "x = 1\ny = 2\nx = 1\n", "bin": b"a\xff"},
    )
    assert told[0].startswith("replaced 1 in a.py:\n")
    assert "     2\ty = 3" in told[0]
    assert "occurs 2 times in a.py (lines 1, 3)" in told[1]
    assert told[2].startswith("replaced 2")
    assert "its first line stands on line 2" in told[3]
    assert "exists already" in told[4]
    assert told[5] == "created d/new.txt, 2 lines"
    assert "there is no none" in told[6]
    assert "cannot be written" in told[7]
    assert "no UTF-8" in told[8]
    assert told[9] == "x = 9\ny = 3\nx = 9\none\ntwo\n644"


async def test_read_and_search():
    lines = "".join(f"line {number}\n" for number in range(1, 3001))
    told = await tell(
        ("read", {"path": "long.txt", "first_line": 10, "last_line": 11}),
        ("read", {"path": "long.txt"}),
        ("read", {"path": "long.txt", "first_line": 4000}),
        ("read", {"path": "bin"}),
        ("read", {"path": "none"}),
        ("read", {"path": "d"}),
        ("read", {"path": "long.txt", "first_line": 0}),
        ("search", {"pattern": "line 299[0-2]$"}),
        ("search", {"pattern": "b+", "path": "d", "files": "*.py"}),
        ("search", {"pattern": "nowhere"}),
        ("search", {"pattern": "(", "path": "d"}),
        ("search", {"pattern": "line"}),
        files={"long.txt": lines, "bin": b"\0\1", "d/a.py": "abba\n", "d/b.txt": "b\n"},
    )
    assert told[0] == "    10\tline 10\n    11\tline 11\n[lines 10 to 11 of 3000]"
    assert "[lines 1 to 1000 of 3000]" in told[1]
    assert "has 3000 lines" in told[2]
    assert "no text" in told[3]
    assert "No such file" in told[4]
    assert "a.py" in told[5]
    assert "counted from 1" in told[6]
    assert told[7].splitlines() == [f"./long.txt:{n}:line {n}" for n in (2990, 2991, 2992)]
    assert told[8] == "d/a.py:1:abba"
    assert told[9] == "[no match]"
    assert "nmatched" in told[10]
    assert "search more exactly" in told[11]


def test_schemas_are_small_and_say_what_they_want():
    for tool in terminal_tools.TOOLS:
        assert tool.spec.description
        for name, field in tool.spec.parameters["properties"].items():
            assert field.get("description"), (tool.spec.name, name)
    required = {tool.spec.name: tool.spec.parameters["required"] for tool in terminal_tools.TOOLS}
    assert required == {
        "shell": ["command"], "edit": ["path", "old", "new"], "read": ["path"],
        "search": ["pattern"],
    }  # fmt: skip


def test_generated_tasks_are_many():
    env = terminal.environment()
    prompts = [task.prompt[0].text for task in itertools.islice(env.tasks.split("train"), 300)]
    assert len(set(prompts)) == 300


class Plain:
    """Native sandboxes that say they can do nothing but what every sandbox can."""

    name = "plain"

    def __init__(self):
        self.inner = NativeBackend(allow_weaker=True)

    async def open(self, spec):
        box = await self.inner.open(spec)
        box.capabilities = frozenset()
        return box


@pytest.mark.parametrize(
    ("command", "reward"),
    [("echo 3 > sum.txt", 1.0),
     ("echo 4 > sum.txt", 0.0),
     ("setsid sh -c 'sleep 3; echo 3 > sum.txt' >/dev/null 2>&1 &", 0.0),
     ("echo 3 > sum.txt; setsid sh -c 'while :; do for d in /check-*; do "
      "echo exit 1 > $d/check.sh; done; done' >/dev/null 2>&1 &", 1.0)],
)  # fmt: skip
async def test_a_sandbox_without_forks_is_judged_in_place(command, reward):
    row = terminal.task(
        "t", "Do it.", split="eval", expect_files={"sum.txt": "3"},
        check='sh "$CHECK/check.sh"', check_files={"check.sh": "test $(cat sum.txt) = 3"},
    )  # fmt: skip
    env = terminal.environment([row])
    backend = Plain()
    policy = Scripted(say(("shell", {"command": command}), ("shell", {"command": "true"})))
    done = await q.arollout(env, policy, row, backend=backend)
    await backend.inner.close()
    assert done.error is None, done.error
    assert done.reward == reward, done.verdict
