import pytest
import torch

from quintain.errors import ConfigError
from quintain.messages import TextPart, ToolCall, ToolResult, assistant, tool_results, user
from quintain.policies.local import load_model, warm_start, warm_started
from quintain.policies.local.supervised import _rows

from .conftest import SPEC


def demonstration(number):
    call = ToolCall(id="c", name="calc", arguments={"expression": f"{number}+1"})
    result = ToolResult(call_id="c", name="calc", content=(TextPart(text=str(number + 1)),))
    return [
        user(f"What comes after {number}?"),
        assistant("", call),
        tool_results(result),
        assistant(f"The answer is {number + 1}"),
    ]


def share_right(model, conversations):
    """How many have every assistant token as the likeliest one."""
    right = 0
    for ids, own in _rows(model, conversations, ()):
        with torch.no_grad():
            logits = model.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
        own_next, next_ids = torch.tensor(own[1:]), torch.tensor(ids[1:])
        right += bool((logits.argmax(-1) == next_ids)[own_next].all())
    return right / len(conversations)


def test_a_short_warm_start_carries_over_to_numbers_it_has_not_seen():
    model = load_model(SPEC)
    seen = [demonstration(number) for number in range(100, 900) if number % 4]
    unseen = [demonstration(number) for number in range(100, 900, 32)]
    assert share_right(model, unseen) == 0.0
    losses = warm_start(model, seen, steps=80, batch=16)
    assert len(losses) == 80
    assert sum(losses[-8:]) < 0.25 * sum(losses[:8])
    assert share_right(model, unseen) > 0.5


def test_it_is_repeatable_and_trains_what_is_trainable():
    talks = [demonstration(number) for number in range(20)]
    hashes, fresh = [], load_model(SPEC).hash()
    for _ in range(2):
        model = load_model(SPEC)
        warm_start(model, talks, steps=3, batch=4, seed=5)
        hashes.append(model.hash())
    assert hashes[0] == hashes[1] != fresh


def test_a_warm_started_model_is_a_folder_kept_by_what_went_in(tmp_path):
    talks = [demonstration(number) for number in range(20)]
    first = warm_started(SPEC, talks, steps=2, batch=4, root=tmp_path)
    assert first.source != SPEC.source
    assert (first.lora, first.dtype) == (SPEC.lora, SPEC.dtype)
    before = load_model(first).hash()
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert warm_started(SPEC, talks, steps=2, batch=4, root=tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == folders
    other = warm_started(SPEC, talks[1:], steps=2, batch=4, root=tmp_path)
    assert other.source != first.source
    assert load_model(first).hash() == before


def test_demonstrations_that_teach_nothing_are_refused():
    with pytest.raises(ConfigError, match="demonstrations"):
        warm_start(load_model(SPEC), [[user("only a question")]], steps=1)
