"""The examples: short, sound, and solved by who does what they ask."""

import importlib.util
from pathlib import Path

import pytest

import quintain as q
from quintain.messages import ToolCall, assistant
from quintain.policies.scripted import Scripted
from quintain.testing import check_environment

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(name, **arguments):
    return assistant("", ToolCall(id=name, name=name, arguments=arguments))


def say(task):
    return [task.answer]


def shop(task):
    item, n = task.answer
    price = {"teapot": 24, "cup": 6, "tray": 15}[item]
    return [call("search", word=item[:3]), call("price", item=item), str(price * n)]


def guess(task):
    return [shop(task)[-1:], [call("price", item="moon"), "0"]]


WHAT = {"sum": "sum(x)", "count": "len(x)", "largest": "max(x)", "smallest": "min(x)"}


def program(task):
    body = f"x = [n for n in map(int, open(0)) if n % {task.metadata['k']} == 0]"
    lines = f"{body}\nprint({WHAT[task.metadata['what']]})"
    return [call("shell", command=f"cat > /work/run.py <<'END'\n{lines}\nEND"), "Done."]


def cheats(task):
    said = task.answer["stdout"]
    return [
        [call("shell", command="true"), said],
        [
            call("shell", command="echo 'import helper' > run.py; echo 'print(1)' > helper.py"),
            "Done.",
        ],
        [call("shell", command="echo 'raise SystemExit(0)' > run.py"), said],
    ]


@pytest.mark.parametrize(
    ("name", "oracle", "fakes"),
    [
        ("exact_answer", say, None),
        ("plain_tools", shop, guess),
        ("clean_room", program, cheats),
    ],
)
async def test_an_example_keeps_the_contract(name, oracle, fakes):
    make = lambda: load(name).env  # noqa: E731
    await check_environment(make(), oracle=oracle, fakes=fakes, again=make, tasks=1)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_is_short_and_explained(file):
    text = file.read_text("utf-8")
    assert len(text.splitlines()) <= 40
    assert load(file.stem).__doc__
    assert isinstance(load(file.stem).env, q.Environment)


def test_every_example_is_evaluated():
    shop_env = load("plain_tools").env
    run = q.evaluate(shop_env, Scripted("12"), split="eval")
    assert run.pass_at(1).value == 0.0
