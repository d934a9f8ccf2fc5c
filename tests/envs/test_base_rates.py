"""The tasks are neither hopeless nor solved for the model that the quickstart trains."""

from itertools import islice

import pytest

import quintain as q
from quintain import registry
from quintain.errors import ConfigError


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", ["calculator", "calculator-hard"])
async def test_the_real_model_has_something_to_learn(name, tmp_path):
    pytest.importorskip("torch")
    policy = registry.policies.get("smollm2")()
    try:
        await policy.start()
    except ConfigError as missing:
        pytest.skip(str(missing))
    env = registry.environments.get(name)()
    try:
        tasks = list(islice(env.tasks.split("eval"), 64))
        run = await q.aevaluate(env, policy, tasks=tasks, run=tmp_path / "run", concurrency=64)
    finally:
        await policy.close()
    rate = run.pass_at(1).value
    assert 0.1 <= rate <= 0.6, f"{name} is solved at a rate of {rate:.2f} by the base model"
