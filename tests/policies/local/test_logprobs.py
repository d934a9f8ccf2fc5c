import math

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from quintain.policies.local import logprobs as module_under_test
from quintain.policies.local.logprobs import process_logits, token_logprobs


def batch(rows=3, length=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.bool)
    for row in range(rows):
        mask[row, length - 3 * row :] = False
    return ids, mask


def naive(model, ids, mask, **how):
    """Every logit of every position, the plain way."""
    logits = model.module(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
    flat = process_logits(logits[:, :-1].flatten(0, 1), **how).view(*logits[:, :-1].shape)
    picked = flat.gather(-1, ids[:, 1:, None])[..., 0]
    out = torch.zeros(ids.shape)
    out[:, 1:] = torch.where(mask[:, 1:], picked, 0.0)
    return out


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "min_p"),
    [
        (1.0, 1.0, 0, 0.0),
        (0.7, 0.8, 0, 0.0),
        (1.3, 1.0, 12, 0.0),
        (0.9, 0.5, 7, 0.0),
        (1.2, 1.0, 0, 0.1),
        (0.8, 0.9, 20, 0.05),
    ],
)
def test_processing_is_that_of_transformers(temperature, top_p, top_k, min_p):
    logits = torch.randn(5, 60, generator=torch.Generator().manual_seed(3)) * 3
    theirs = TemperatureLogitsWarper(temperature)(None, logits.clone())
    if min_p:
        theirs = MinPLogitsWarper(min_p)(None, theirs)
    if top_k:
        theirs = TopKLogitsWarper(top_k)(None, theirs)
    if top_p < 1:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    how = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    torch.testing.assert_close(process_logits(logits, **how), theirs.log_softmax(-1))


def test_greedy_speaks_of_the_plain_distribution():
    logits = torch.randn(2, 9)
    ours = process_logits(logits, temperature=0.0, top_p=0.3, top_k=2)
    torch.testing.assert_close(ours, logits.log_softmax(-1))


def test_a_token_that_was_sampled_is_never_cut():
    logits = torch.tensor([[5.0, 4.0, -9.0]])
    kept = torch.tensor([2])
    ours = process_logits(logits, temperature=1.0, top_p=0.5, top_k=1, keep_N=kept)
    assert torch.isfinite(ours[0, 2])
    assert torch.isinf(process_logits(logits, temperature=1.0, top_k=1)[0, 2])


@pytest.mark.parametrize("how", [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 5}])
def test_log_probabilities_are_those_of_the_plain_way(model, how):
    ids, mask = batch()
    with torch.no_grad():
        ours = token_logprobs(model.module, ids, mask, **how)
        theirs = naive(model, ids, mask, **how)
    finite = torch.isfinite(theirs)
    assert finite.any()
    torch.testing.assert_close(ours[finite], theirs[finite], atol=1e-5, rtol=1e-5)
    assert torch.equal(ours[~mask], torch.zeros_like(ours[~mask]))
    assert torch.equal(ours[:, 0], torch.zeros(len(ids)))


def test_chunks_change_neither_values_nor_gradients(adapted, monkeypatch):
    ids, mask = batch()
    found = []
    for chunk in (512, 7):
        monkeypatch.setattr(module_under_test, "CHUNK", chunk)
        adapted.module.zero_grad()
        values, entropies = token_logprobs(
            adapted.module, ids, mask, temperature=0.9, top_p=0.9, with_entropy=True
        )
        (values.sum() + 0.1 * entropies.sum()).backward()
        gradients = [p.grad.clone() for p in adapted.trainable().values()]
        assert any(bool(g.abs().max() > 0) for g in gradients)
        found.append((values.detach(), entropies.detach(), gradients))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
    for one, other in zip(found[0][2], found[1][2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_entropy_is_of_the_distribution_that_is_sampled(model):
    ids, mask = batch(rows=1)
    with torch.no_grad():
        _, entropy = token_logprobs(
            model.module, ids, mask, temperature=1.0, top_k=1, with_entropy=True
        )
        _, wide = token_logprobs(model.module, ids, mask, temperature=1.0, with_entropy=True)
    # One token is kept, and the given one where it is another.
    assert float(entropy.max()) < math.log(2) + 1e-6
    assert float(wide[0, 1:].min()) > 1.0


def test_only_wanted_tokens_have_values(model):
    ids, mask = batch()
    where = torch.zeros_like(mask)
    where[1, 4:6] = True
    with torch.no_grad():
        some = token_logprobs(model.module, ids, mask, temperature=1.0, where_BT=where)
        every = token_logprobs(model.module, ids, mask, temperature=1.0)
    torch.testing.assert_close(some[where], every[where])
    assert int((some != 0).sum()) == 2


def test_rows_that_share_a_prefix_are_those_rows_apart(model):
    prompt, answers = list(range(40, 50)), [[1, 2, 3], [4, 5, 6, 7]]
    joint = prompt + answers[0] + answers[1]
    length = len(joint)
    part = torch.tensor([0] * 10 + [1] * 3 + [2] * 4)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = causal & ((part[:, None] == part) | (part == 0))
    positions = torch.tensor([[*range(10), *range(10, 13), *range(10, 14)]])
    source = torch.arange(length)[None] - 1
    source[0, 13] = 9
    where = torch.tensor([[False] * 10 + [True] * 7])
    with torch.no_grad():
        together = token_logprobs(
            model.module,
            torch.tensor([joint]),
            mask[None, None],
            temperature=1.0,
            where_BT=where,
            position_ids_BT=positions,
            source_BT=source,
        )
        apart = []
        for answer in answers:
            row = torch.tensor([prompt + answer])
            ones = torch.ones_like(row, dtype=torch.bool)
            apart.append(token_logprobs(model.module, row, ones, temperature=1.0)[0, 10:])
    torch.testing.assert_close(together[0, 10:], torch.cat(apart), atol=1e-5, rtol=1e-5)


def test_a_shared_prefix_mask_needs_to_be_told_what_is_wanted(model):
    ids, _ = batch(rows=1)
    with pytest.raises(ValueError, match="where_BT"):
        token_logprobs(model.module, ids, torch.ones(1, 1, 20, 20), temperature=1.0)
