"""The environment contract, over every built-in environment."""

from __future__ import annotations

import pytest

from quintain import registry
from quintain.testing import check_environment

SIZES = {"eval": 20, "heldout": 20}


def plant_case(task, secret):
    """A hidden test whose expected value is the secret."""
    cases = task.answer["cases"]
    extra = {**cases[0], "expected": secret}
    return task.model_copy(update={"answer": {**task.answer, "cases": [*cases, extra]}})


def plant_file(task, secret):
    """A file that must hold the secret."""
    files = {**task.answer.get("files", {}), "planted.txt": secret}
    return task.model_copy(update={"answer": {**task.answer, "files": files}})


SETTINGS = {"heavy-tail": {"scale": 10_000}}
PLANT = {"python": plant_case, "terminal": plant_file}


def text(messages):
    return "".join(message.model_dump_json() for message in messages)


def prompts(env, split, most=300):
    return [text(task.prompt) for task, _ in zip(env.tasks.split(split), range(most), strict=False)]


@pytest.mark.parametrize("name", registry.environments.names())
async def test_built_in(name):
    def make():
        return registry.environments.get(name)(**SIZES, **SETTINGS.get(name, {}))

    await check_environment(make(), again=make, plant=PLANT.get(name), tasks=2)


@pytest.mark.parametrize("name", registry.environments.names())
def test_another_seed_gives_other_tasks_that_keep_to_their_sides(name):
    make = registry.environments.get(name)
    one, other = make(seed=1, **SIZES), make(seed=2, **SIZES)
    assert prompts(one, "eval") != prompts(other, "eval")
    assert not set(prompts(one, "train")) & set(prompts(other, "heldout"))


@pytest.mark.parametrize("name", registry.environments.names())
def test_demonstrations_come_from_the_train_split(name):
    env = registry.environments.get(name)(**SIZES)
    demonstrations = env.demonstrations(30, 5)
    assert len(demonstrations) == 30
    assert demonstrations == env.demonstrations(30, 5)
    assert demonstrations != env.demonstrations(30, 6)
    elsewhere = {*prompts(env, "eval"), *prompts(env, "heldout")}
    for talk in demonstrations:
        assert talk[-1].role == "assistant"
        assert not any(text(talk[:n]) in elsewhere for n in range(len(talk)))
