"""A real vLLM server: exact tokens, weights that arrive, and nothing left when anybody dies."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train'")

from quintain.envs.environment import Environment  # noqa: E402
from quintain.errors import ConfigError, PolicyError  # noqa: E402
from quintain.messages import Sampling, user  # noqa: E402
from quintain.policies.local.logprobs import token_logprobs  # noqa: E402
from quintain.policies.local.model import load_model  # noqa: E402
from quintain.policies.local.tokens import TokenPolicy  # noqa: E402
from quintain.policies.vllm import vllm  # noqa: E402
from quintain.protocols import Policy, Published  # noqa: E402
from quintain.rollouts import Host  # noqa: E402
from quintain.store import Store  # noqa: E402
from quintain.training.config import TrainConfig  # noqa: E402
from quintain.training.run import run_training  # noqa: E402

PYTHON = os.environ.get("QUINTAIN_TEST_VLLM") or str(
    Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
)
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not Path(PYTHON).exists(), reason="no vLLM in .venv-vllm: run `make test-interop`"
    ),
]
NATS = 1e-3
"""How far vLLM's log-probabilities in float32 may be from the learner's."""


def policy_(**settings):
    told = {
        "dtype": "float32",
        "threads": 1,
        "lora": 4,
        "max_context": 512,
        "max_tokens": 12,
        "python": PYTHON,
        "options": ("--enforce-eager",),
    }
    return vllm("tiny", **{**told, **settings})


@pytest.fixture(scope="module")
def served():
    """One server for the whole file; it takes a minute to start."""
    found = policy_()
    yield found
    asyncio.run(found.close())


@pytest.fixture
def learner(served):
    return load_model(served.spec)


@pytest.fixture
def fresh(served, learner, tmp_path):
    """The server under the spec's own weights, whatever the test before left in it."""
    path = tmp_path / "fresh.safetensors"
    asyncio.run(served.update(Published(0, path, learner.save(path))))
    return served


def stir(model, seed, size=0.05):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


def gaps(model, actions, sampling=None):
    """For each sampled token of a session: its version, and how far behaviour is from `model`."""
    ids, logprobs, versions = [], [], []
    for span in (span for action in actions for span in action.tokens):
        assert not span.restart
        ids += [*span.prompt_delta_ids, *span.token_ids]
        logprobs += [0.0] * len(span.prompt_delta_ids) + list(span.logprobs)
        versions += [-1] * len(span.prompt_delta_ids)
        versions += [span.policy_version] * len(span.token_ids)
    sampling = sampling or Sampling()
    own = torch.tensor([versions]) >= 0
    with torch.no_grad():
        found = token_logprobs(
            model.module,
            torch.tensor([ids]),
            torch.ones_like(own),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            where_BT=own,
        )
    return torch.tensor([versions])[own], (found - torch.tensor([logprobs])).abs()[own]


async def play(policy, session, turns=3, sampling=None):
    messages, actions = [user(f"Hello {session}")], []
    for turn in range(turns):
        how = sampling or Sampling()
        action = await policy.act(messages, tools=[], sampling=how, seed=turn, session=session)
        actions.append(action)
        messages += [action.message, user(f"Go on {turn}")]
    return actions


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"temperature": 0.7, "top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.02, "temperature": 1.2},
        {"temperature": 0.0},
    ],
    ids=["plain", "top-k", "top-p", "min-p", "greedy"],
)
async def test_tokens_are_the_learners(fresh, learner, how):
    assert isinstance(fresh, Policy)
    sampling = Sampling(max_tokens=12, **how)
    played = await asyncio.gather(
        *(play(fresh, f"{sorted(how)} {n}", sampling=sampling) for n in range(6))
    )
    found = torch.cat([gaps(learner, actions, sampling)[1] for actions in played])
    assert len(found) > 60
    # At the edge of a cut a token may fall on either side by rounding.
    edge = 0.05 if "top_p" in how or "min_p" in how else NATS
    assert found.median() < NATS / 10
    assert found.max() < edge


async def test_a_turn_continues_what_the_server_kept(fresh):
    long = Sampling(max_tokens=200)
    actions = await play(fresh, "kept", turns=2, sampling=long)
    if actions[0].usage.completion_tokens > 128:  # vLLM keeps whole blocks, of 128 on a CPU
        assert actions[1].usage.cached_tokens > 0


async def test_weights_are_swapped_in_flight_and_proven(fresh, learner, tmp_path):
    await fresh.start()
    before = await counted(fresh, "generation_tokens_total")
    calls = [
        asyncio.create_task(play(fresh, f"f{n}", turns=1, sampling=Sampling(max_tokens=450)))
        for n in range(8)
    ]
    old = load_model(fresh.spec)
    stir(learner, 2)
    path = tmp_path / "1.safetensors"
    published = Published(1, path, learner.save(path))
    async with asyncio.timeout(60):
        while await counted(fresh, "generation_tokens_total") < before + 16:
            await asyncio.sleep(0.01)
    await fresh.update(published)
    assert fresh.version == 1
    assert fresh.canary["hash"] == published.hash
    assert fresh.canary["gap"] < NATS
    assert max(abs(a - b) for a, b in zip(fresh.canary["probe"], old.probe(), strict=True)) > NATS
    seen = set()
    for actions in await asyncio.gather(*calls):
        versions, under_new = gaps(learner, actions)
        _, under_old = gaps(old, actions)
        seen |= set(versions.tolist())
        for version, found in ((0, under_old), (1, under_new)):
            if (versions == version).any():
                assert found[versions == version].max() < NATS
    assert seen == {0, 1}


async def test_weights_that_were_not_published_are_refused(fresh, learner, tmp_path):
    path = tmp_path / "2.safetensors"
    stir(learner, 3)
    digest = learner.save(path)
    with pytest.raises(PolicyError, match="as published"):
        await fresh.update(Published(2, path, "not its hash"))
    with pytest.raises(PolicyError, match="cannot read"):
        await fresh.update(Published(2, tmp_path / "none", "x"))
    assert fresh.version == 0
    actions = await play(fresh, "after refusals", turns=1)
    assert {span.policy_version for span in actions[0].tokens} == {0}
    await fresh.update(Published(2, path, digest))
    assert gaps(learner, await play(fresh, "then", turns=1))[1].max() < NATS


async def test_stop_strings_end_a_call(fresh):
    said = {}
    for session, stop in (("free", ()), ("stopped", None)):
        stop = (said["free"].message.text[2:4],) if stop is None else stop
        how = Sampling(max_tokens=24, temperature=0.0, stop=stop)
        said[session] = await fresh.act(
            [user("Hello")], tools=[], sampling=how, seed=0, session=session
        )
    free, stopped = said["free"], said["stopped"]
    word = free.message.text[2:4]
    assert len(word) == 2
    assert stopped.finish == "stop"
    assert word in stopped.message.text  # kept, as every token that was sampled is
    assert free.message.text.startswith(stopped.message.text)
    assert stopped.usage.completion_tokens < free.usage.completion_tokens


async def test_a_cancelled_call_ends_at_the_server(fresh):
    await fresh.start()
    call = asyncio.create_task(play(fresh, "gone", turns=1, sampling=Sampling(max_tokens=450)))
    await asyncio.sleep(0.5)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    deadline = time.monotonic() + 60
    while await counted(fresh) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    assert await counted(fresh) == 0
    await play(fresh, "next", turns=1)


async def counted(policy, name="num_requests_running"):
    """What the server's metrics say; by default how many requests it is working on."""
    engine = policy._engine

    async def ask():
        async with engine._client.get(f"{engine._address}/metrics") as response:
            return await response.text()

    text = await asyncio.wrap_future(engine._run(ask()))
    rows = [line for line in text.splitlines() if line.startswith(f"vllm:{name}")]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


async def test_training_samples_from_it_and_its_weights_follow(fresh, tmp_path):
    async def letter(text):
        return text[:1].isascii() and text[:1].isalpha()

    env = Environment(
        [{"id": f"t{i}", "prompt": f"say {i}", "split": "train"} for i in range(64)],
        letter,
        name="letters",
        sampling=Sampling(max_tokens=3),
    )
    config = TrainConfig(
        steps=4, groups_per_step=6, group_size=8, lr=3e-3, learner_threads=1, mode="sync"
    )
    with Store.begin(tmp_path / "run", kind="train", identity={}) as store:
        async with Host(env, fresh, store=store) as host:
            trainer = await run_training(config, host, store)
        metrics = {}
        for step, name, value in store.metric_rows():
            metrics.setdefault(step, {})[name] = value
        trained = list(store.trajectories(purpose="train"))
    learned = [row for row in metrics.values() if "loss" in row]
    assert len(learned) >= 2
    assert trainer.version == fresh.version == len(learned)
    assert fresh.canary["version"] == fresh.version
    spoken = {s.policy_version for t in trained for step in t.steps for s in step.action.tokens}
    assert spoken >= {0, 1}
    for row in learned:
        assert row["logprob_gap_max"] < NATS


async def test_a_killed_server_is_started_again_with_its_weights(fresh, learner, tmp_path):
    stir(learner, 5)
    path = tmp_path / "7.safetensors"
    await fresh.update(Published(7, path, learner.save(path)))
    old = fresh._engine.pid
    (api,) = children(old)
    call = asyncio.create_task(play(fresh, "x", turns=1, sampling=Sampling(max_tokens=450)))
    await asyncio.sleep(0.5)
    os.kill(api, signal.SIGKILL)
    with pytest.raises(PolicyError, match="signal 9"):
        await call
    actions = await play(fresh, "x")
    assert fresh._engine.pid != old
    versions, found = gaps(learner, actions)
    assert set(versions.tolist()) == {7}
    assert found.max() < NATS
    assert fresh.canary["version"] == 7


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


OWNER = """
import asyncio, sys, time
from quintain.policies.vllm import vllm
policy = vllm("tiny", dtype="float32", threads=1, python=sys.argv[1], options=("--enforce-eager",))
engine = policy._spawn()
print(engine.pid, flush=True)
time.sleep(600)
"""


def test_the_server_ends_with_an_owner_that_is_killed():
    command = [sys.executable, "-c", OWNER, PYTHON]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    keeper = int(owner.stdout.readline())
    deadline = time.monotonic() + 60
    while not children(keeper) and time.monotonic() < deadline:
        time.sleep(0.05)
    (api,) = children(keeper)
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{api}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{api}").exists()


def test_an_environment_without_vllm_is_a_clear_error():
    with pytest.raises(ConfigError, match="has no vLLM"):
        asyncio.run(policy_(python=sys.executable).start())
    with pytest.raises(ConfigError, match="cannot be run"):
        asyncio.run(policy_(python="/nowhere/python").start())
    assert issubclass(type(policy_()), TokenPolicy)
