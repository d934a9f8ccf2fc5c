import pytest
import torch

from quintain.policies.local.decoder import AnyDecoder, Rows
from quintain.policies.local.engine import Engine, Request
from quintain.policies.local.kv import Slots
from quintain.policies.local.llama import LlamaDecoder, decoder_for
from quintain.policies.local.logprobs import token_logprobs
from quintain.policies.local.sampler import choose

from .conftest import stir

PROMPT = tuple(range(40, 100))


def request(number, ids=PROMPT, **changes):
    fields = {
        "id": number,
        "session": f"s{number}",
        "ids": tuple(ids),
        "max_tokens": 12,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": number,
        "end_ids": frozenset({7}),
    }
    return Request(**{**fields, **changes})


def finish(engine, requests):
    for one in requests:
        engine.submit(one)
    done = {}
    while engine.busy:
        for finished in engine.step():
            done[finished.id] = finished
    return done


def sampled(finished):
    return [token for segment in finished.segments for token in segment.ids]


def behaviour(finished):
    return [value for segment in finished.segments for value in segment.logprobs]


def decoder(model, kind):
    return AnyDecoder(model.module) if kind == "any" else LlamaDecoder(model.module, 512)


def recomputed(model, one, finished):
    ids = torch.tensor([[*one.ids, *sampled(finished)]])
    with torch.no_grad():
        found = token_logprobs(
            model.module,
            ids,
            torch.ones_like(ids, dtype=torch.bool),
            temperature=one.temperature,
            top_p=one.top_p,
            top_k=one.top_k,
            min_p=one.min_p,
        )
    return found[0, len(one.ids) :]


@pytest.mark.parametrize("kind", ["any", "llama"])
@pytest.mark.parametrize(
    "how",
    [{}, {"temperature": 0.6, "top_p": 0.8, "top_k": 30}, {"temperature": 0.0}, {"min_p": 0.1}],
    ids=["plain", "cut", "greedy", "min-p"],
)
def test_behaviour_log_probabilities_are_the_learners(adapted, kind, how):
    """Different lengths join and leave one batch, with more requests than slots."""
    engine = Engine(decoder(adapted, kind), slots=3)
    asked = [request(n, range(20 + n, 40 + 7 * n), max_tokens=4 + 3 * n, **how) for n in range(7)]
    done = finish(engine, asked)
    assert len(done) == 7
    for one in asked:
        gap = (torch.tensor(behaviour(done[one.id])) - recomputed(adapted, one, done[one.id])).abs()
        if "min_p" in how:
            # A token that sits on the edge of the cut may fall on either side by rounding.
            assert gap.median() < 1e-4
            assert gap.max() < 0.02
        else:
            assert gap.max() < 1e-4


def test_the_lean_decoder_computes_what_the_module_does(adapted):
    lean = decoder_for(adapted)
    assert isinstance(lean, LlamaDecoder)
    rows = Rows(slots=[0, 1], cached=[0, 0], new=[list(range(30)), list(range(50, 62))])
    ours = lean.forward(rows, Slots(lean.shape, 2, 32))
    theirs = AnyDecoder(adapted.module).forward(rows, Slots(lean.shape, 2, 32))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_lean_decoder_takes_new_weights_when_told(adapted):
    lean = LlamaDecoder(adapted.module, 64)
    rows = Rows(slots=[0], cached=[0], new=[list(range(9))])
    before = lean.forward(rows, Slots(lean.shape, 1, 16))
    stir(adapted, 5)
    assert torch.equal(before, lean.forward(rows, Slots(lean.shape, 1, 16)))
    lean.refresh()
    assert not torch.equal(before, lean.forward(rows, Slots(lean.shape, 1, 16)))


def test_a_sample_depends_on_its_seed_not_on_its_neighbours(model):
    alone = finish(Engine(LlamaDecoder(model.module, 512)), [request(3)])[3]
    crowd = finish(Engine(LlamaDecoder(model.module, 512), slots=4), [request(n) for n in range(8)])
    assert sampled(crowd[3]) == sampled(alone)
    assert len({tuple(sampled(one)) for one in crowd.values()}) == 8


def test_equal_requests_in_equal_order_give_equal_bits(model):
    runs = [
        finish(Engine(LlamaDecoder(model.module, 512), slots=4), [request(n) for n in range(8)])
        for _ in range(2)
    ]
    assert [behaviour(one) for one in runs[0].values()] == [
        behaviour(one) for one in runs[1].values()
    ]


@pytest.mark.parametrize("kind", ["any", "llama"])
def test_a_groups_prompt_is_computed_once_and_a_turn_continues(model, kind):
    engine = Engine(decoder(model, kind), slots=8)
    asked = [request(n) for n in range(8)]
    done = finish(engine, asked)
    first = engine.counters.prefilled_tokens
    # The whole prompt once, and its last token for each of the others.
    assert first == len(PROMPT) + 7
    assert sorted(one.cached for one in done.values()) == [0] + [len(PROMPT) - 1] * 7
    asked = [request(n, (*PROMPT, *sampled(done[n]), 1, 2, 3), seed=n + 50) for n in range(8)]
    again = finish(engine, asked)
    # The last sampled token was never fed, and three are new.
    assert engine.counters.prefilled_tokens - first == 8 * 4
    for one in asked:
        ours = torch.tensor(behaviour(again[one.id]))
        torch.testing.assert_close(ours, recomputed(model, one, again[one.id]), atol=1e-4, rtol=0)


def test_a_late_member_copies_from_one_that_is_still_running(model):
    engine = Engine(LlamaDecoder(model.module, 512), slots=4)
    engine.submit(request(0, max_tokens=20))
    engine.step()
    done = finish(engine, [request(1)])
    assert done[1].cached == len(PROMPT) - 1


def test_the_cache_is_bounded_and_drops_the_oldest(model):
    shape = LlamaDecoder(model.module, 512).shape
    token = shape.layers * 2 * shape.heads * shape.width * 4
    engine = Engine(LlamaDecoder(model.module, 512), prefix_bytes=token * 150)
    for number in range(4):
        finish(engine, [request(number, range(100 * number, 100 * number + 60))])
    assert engine._prefixes.bytes <= token * 150
    late = finish(engine, [request(9, range(300, 360)), request(10, range(60))])
    assert (late[9].cached, late[10].cached) == (59, 0)


@pytest.mark.parametrize("kind", ["any", "llama"])
def test_new_weights_come_between_tokens_and_nothing_old_is_used_again(adapted, kind):
    lean = decoder(adapted, kind)
    engine = Engine(lean, slots=2)
    asked = [request(n, max_tokens=10, end_ids=frozenset()) for n in range(3)]
    for one in asked:
        engine.submit(one)
    for _ in range(4):
        assert not engine.step()
    before = [p.detach().clone() for p in adapted.trainable().values()]
    stir(adapted, 11)
    lean.refresh()
    engine.update(1)
    done = {one.id: one for one in (f for _ in range(30) for f in engine.step())}
    assert [[s.version for s in done[n].segments] for n in range(3)] == [[0, 1], [0, 1], [1]]
    for one in asked:
        new = recomputed(adapted, one, done[one.id])
        late = torch.tensor(done[one.id].segments[-1].logprobs)
        torch.testing.assert_close(late, new[-len(late) :], atol=1e-4, rtol=0)
    for parameter, value in zip(adapted.trainable().values(), before, strict=True):
        parameter.data.copy_(value)
    early = torch.tensor(done[0].segments[0].logprobs)
    old = recomputed(adapted, asked[0], done[0])
    torch.testing.assert_close(early, old[: len(early)], atol=1e-4, rtol=0)


def test_a_cancelled_request_leaves_and_the_others_go_on(model):
    engine = Engine(LlamaDecoder(model.module, 512), slots=2)
    for number in range(4):
        engine.submit(request(number, end_ids=frozenset()))
    engine.step()
    engine.cancel(0)
    engine.cancel(3)
    engine.cancel(99)
    done = finish(engine, [])
    assert sorted(done) == [1, 2]
    alone = finish(Engine(LlamaDecoder(model.module, 512)), [request(1, end_ids=frozenset())])
    assert sampled(done[1]) == sampled(alone[1])


def test_end_tokens_and_stop_strings_end_a_sequence(model):
    decode = model.template.decode
    free = finish(Engine(LlamaDecoder(model.module, 512)), [request(1, end_ids=frozenset())])[1]
    assert (free.finish, len(sampled(free))) == ("length", 12)
    ended = request(1, end_ids=frozenset({sampled(free)[4]}))
    done = finish(Engine(LlamaDecoder(model.module, 512)), [ended])[1]
    assert (done.finish, sampled(done)) == ("stop", sampled(free)[:5])
    text = decode(sampled(free)[2:4])
    stopped = request(1, end_ids=frozenset(), stop=(text,))
    engine = Engine(LlamaDecoder(model.module, 512), decode_text=decode)
    done = finish(engine, [stopped])[1]
    assert done.finish == "stop"
    assert text in decode(sampled(done))
    assert len(sampled(done)) <= 4


def test_drawing_follows_the_distribution_and_never_leaves_it():
    logits = torch.tensor([[0.0, 1.0, float("-inf"), 2.0]])
    uniforms = [(n + 0.5) / 4000 for n in range(4000)]
    tokens, logprobs = choose(logits.expand(4000, 4), uniforms, temperature=1.0, top_p=1.0, top_k=0)
    expected = logits.softmax(-1)[0]
    for token in range(4):
        assert tokens.count(token) / 4000 == pytest.approx(float(expected[token]), abs=1e-3)
    assert logprobs[0] == pytest.approx(float(expected[tokens[0]].log()), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2**-53])
def test_the_borders_of_a_draw_have_probability(uniform):
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, 300], logits[0, 700] = 1.0, 1.0
    tokens, _ = choose(logits, [uniform], temperature=1.0, top_p=1.0, top_k=0)
    assert tokens[0] in (300, 700)
