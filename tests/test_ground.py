"""The nouns: strict, frozen, and the same after a round trip through JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quintain import errors, registry
from quintain.batch import Batch
from quintain.errors import (
    PolicyError,
    QuintainError,
    RegistryError,
    RolloutError,
    SandboxTimeout,
    boundary,
)
from quintain.messages import (
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    user,
)
from quintain.record import canonical, derive_seed, digest
from quintain.task import NetworkPolicy, SandboxSpec, Split, Task, split_of
from quintain.trajectory import StopReason, TokenSpan, Trajectory
from quintain.verdict import Outcome, Verdict


def test_a_message_keeps_every_kind_of_part() -> None:
    message = Message(
        role="assistant",
        content=(
            ReasoningPart(text="hm", signature="s"),
            TextPart(text="a"),
            ImagePart(data=b"\x89PNG\x00\xff", media_type="image/png"),
            ImagePart(url="http://localhost/x.png"),
            FilePart(name="a.bin", data=bytes(range(256))),
            ToolCall(id="1", name="f", arguments={"x": [1, None, {"y": "ü"}]}),
            ToolResult(call_id="1", name="f", content=(TextPart(text="r"),), is_error=True),
            TextPart(text="b"),
        ),
    )
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert (message.text, message.reasoning) == ("ab", "hm")
    assert message.tool_calls[0].name == "f"
    assert message.tool_results[0].text == "r"


def test_a_string_is_one_text_part_and_unknown_fields_are_refused() -> None:
    assert Message(role="user", content="hi") == user("hi")
    with pytest.raises(ValidationError, match="Extra inputs"):
        Message.model_validate({"role": "user", "content": "hi", "colour": "red"})
    with pytest.raises(ValidationError, match="frozen"):
        user("hi").role = "system"
    with pytest.raises(ValidationError, match="exactly one of data and url"):
        ImagePart()


def test_sampling_is_bounded() -> None:
    with pytest.raises(ValidationError):
        Sampling(temperature=-0.1)
    with pytest.raises(ValidationError):
        Sampling(top_p=0.0)


@given(st.binary(max_size=200), st.text(max_size=50))
def test_task_files_survive_json(data: bytes, text: str) -> None:
    task = Task(id="a", prompt="p", files={"b": data}, hidden_files={"t": text})
    again = Task.model_validate_json(task.model_dump_json())
    assert again == task
    assert again.files["b"] == data


def test_the_public_task_holds_no_secret() -> None:
    task = Task(
        id="a", prompt="p", answer="CANARY1", world={"k": "CANARY2"},
        hidden_files={"t": "CANARY3"}, files={"f": "seen"}, metadata={"m": 1},
    )  # fmt: skip
    text = task.public().model_dump_json()
    assert "CANARY" not in text
    assert "Q0FOQVJZ" not in text, "nor as base64"
    assert task.public().files == {"f": b"seen"}


def test_splits_are_stable_and_about_eighty_ten_ten() -> None:
    counts = Counter(split_of(f"task-{n}") for n in range(10_000))
    assert 7800 < counts[Split.TRAIN] < 8200
    assert 850 < counts[Split.EVAL] < 1150
    # Frozen: a row must never change sides between versions of the package.
    assert [split_of(f"task-{n}").value for n in range(12)] == FROZEN_SPLITS


FROZEN_SPLITS = [
    *("train", "train", "heldout", "train", "heldout", "eval"),
    *("heldout", "train", "train", "train", "train", "heldout"),
]


def test_seeds_and_digests_are_the_same_in_every_process() -> None:
    program = (
        "from quintain.record import digest, derive_seed;"
        "print(digest('a', 1, {'b': [2]}), derive_seed(0, 'task', 3))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert told == {f"{digest('a', 1, {'b': [2]})} {derive_seed(0, 'task', 3)}\n"}
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(1) != digest("1x")
    assert canonical({"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert 0 <= derive_seed("x") < 2**63


@pytest.mark.parametrize("reward", [math.nan, math.inf, -0.1, 1.1])
def test_a_reward_is_finite_and_in_range(reward: float) -> None:
    with pytest.raises(ValidationError, match="finite and in"):
        Verdict(reward=reward, passed=False)


def test_a_verdict_is_consistent() -> None:
    assert Verdict.of(True).outcome is Outcome.SOLVED
    assert Verdict.of(False).outcome is Outcome.FAILED
    assert Verdict.abstain("?").outcome is Outcome.ABSTAINED
    with pytest.raises(ValidationError):
        Verdict(reward=None, passed=True)
    with pytest.raises(ValidationError):
        Verdict(reward=0.0, passed=True)
    with pytest.raises(ValidationError):
        Verdict(reward=1.0, passed=True, score=math.nan)


def test_only_solved_and_failed_count_in_a_score() -> None:
    assert {o for o in Outcome if o.judged} == {Outcome.SOLVED, Outcome.FAILED}
    assert {o for o in Outcome if o.host_fault} == {
        Outcome.INFRA_ERROR, Outcome.VERIFIER_ERROR, Outcome.POLICY_ERROR,
    }  # fmt: skip


def test_a_span_has_one_logprob_a_token() -> None:
    with pytest.raises(ValidationError, match="2 tokens but 1 logprobs"):
        TokenSpan(token_ids=(1, 2), logprobs=(-1.0,), policy_version=0)


def test_network_hosts_go_with_the_allowlist() -> None:
    NetworkPolicy(mode="allowlist", hosts=("*.example.org",))
    with pytest.raises(ValidationError):
        NetworkPolicy(mode="allowlist")
    with pytest.raises(ValidationError):
        NetworkPolicy(mode="none", hosts=("example.org",))
    with pytest.raises(ValidationError, match="any public host"):
        NetworkPolicy(mode="open", hosts=("example.org",))
    with pytest.raises(ValidationError, match="https"):
        NetworkPolicy(hosts=("https://example.org/",))
    with pytest.raises(ValidationError, match="65536"):
        NetworkPolicy(hosts=("example.org",), ports=(65536,))
    assert NetworkPolicy().mode == "none"
    listed = NetworkPolicy(presets=("pip",))
    assert listed.mode == "allowlist"
    assert NetworkPolicy.model_validate_json(listed.model_dump_json()) == listed
    with pytest.raises(ValidationError):
        SandboxSpec(workdir="relative")
    with pytest.raises(ValidationError):
        SandboxSpec(workdir="/a/../b")


def test_the_tree_of_errors_resembles_the_builtins() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.RegistryError, LookupError)
    assert issubclass(SandboxTimeout, TimeoutError)
    assert issubclass(errors.CapabilityError, NotImplementedError)
    assert issubclass(errors.ContextOverflow, PolicyError)
    documented = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, QuintainError):
            assert name in documented, f"{name} is missing from the drawn tree"


def test_the_boundary_classifies_foreign_errors_only() -> None:
    with (
        pytest.raises(PolicyError, match="asking: KeyError: 'x'") as caught,
        boundary(PolicyError, "asking"),
    ):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SandboxTimeout), boundary(PolicyError, "asking"):
        raise SandboxTimeout("own errors pass")
    with pytest.raises(KeyboardInterrupt), boundary(RolloutError, "asking"):
        raise KeyboardInterrupt


def test_the_registry_names_the_nearest_and_takes_paths() -> None:
    with pytest.raises(RegistryError, match="did you mean native"):
        registry.sandboxes.target("natve")
    assert registry.environments.get("collections:Counter") is Counter
    with pytest.raises(RegistryError, match="cannot load"):
        registry.environments.get("collections:Nothing")


def test_every_registered_name_can_be_loaded() -> None:
    for table in registry.TABLES.values():
        for name in table.names():
            assert table.get(name) is not None


def test_a_trajectory_survives_json() -> None:
    trajectory = Trajectory(
        environment="e", task_id="t", policy="p", purpose="train", stop=StopReason.DONE,
        outcome=Outcome.FAILED, verdict=Verdict.of(False), artifacts={"a": "b"},
    )  # fmt: skip
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert json.loads(trajectory.model_dump_json())["outcome"] == "failed"
    assert trajectory.text == ""
    assert assistant("x").text == "x"


def test_a_batch_checks_its_shapes() -> None:
    zeros = np.zeros((2, 3))
    fields = {
        "token_ids_BT": zeros.astype(np.int64),
        "attention_mask_BT": np.ones((2, 3), bool),
        "loss_mask_BT": np.zeros((2, 3), bool),
        "behaviour_logprobs_BT": zeros.astype(np.float32),
        "advantages_BT": zeros.astype(np.float32),
        "version_BT": zeros.astype(np.int64),
        "trajectory_B": np.arange(2),
        "group_B": np.zeros(2, np.int64),
        "denominator": 1.0,
    }
    assert Batch(**fields).trained_tokens == 0
    with pytest.raises(ValueError, match="advantages_BT has shape"):
        Batch(**{**fields, "advantages_BT": np.zeros((2, 2), np.float32)})
    with pytest.raises(ValueError, match="first token"):
        Batch(**{**fields, "loss_mask_BT": np.ones((2, 3), bool)})
    with pytest.raises(ValueError, match="positive"):
        Batch(**{**fields, "denominator": 0.0})


def test_importing_the_package_is_light() -> None:
    program = (
        "import sys; before = set(sys.modules); import quintain;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "heavy = new & {'torch', 'numpy', 'pydantic', 'aiohttp', 'typer', 'transformers', 'rich'};"
        "print(sorted(heavy)); assert dir(quintain)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
    assert result.stderr == ""
