"""What a combination says, for every outcome of its parts."""

import itertools

import pytest

from quintain.errors import ConfigError, VerifierError
from quintain.verdict import Check, Verdict
from quintain.verifiers.combine import all_of, any_of, gated, majority, weighted
from quintain.verifiers.function import verifier


class Part:
    """Says what it is told; counts how often it was asked."""

    def __init__(self, name, reward, kind="formal", passed=None):
        self.name, self.kind, self.asked = name, kind, 0
        passed = reward == 1.0 if passed is None else passed
        self.verdict = Verdict(reward=reward, passed=passed, explanation=f"{name} said")

    async def judge(self, context):
        self.asked += 1
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


class Broken(Part):
    def __init__(self, name):
        super().__init__(name, 0.0)
        self.verdict = VerifierError("broken")


NAMES = "abc"
MAKE = {"all": all_of, "any": any_of, "gated": gated, "majority": majority}


def expected(rule, rewards):
    """The table of the module, written a second time as directly as can be."""
    yes, no, unknown = (rewards.count(value) for value in (1.0, 0.0, None))
    if rule == "gated" and rewards[0] is None:
        return None
    if rule in ("all", "gated"):
        return 0.0 if no else None if unknown else 1.0
    if rule == "any":
        return 1.0 if yes else None if unknown else 0.0
    half = len(rewards) / 2
    return 1.0 if yes > half else 0.0 if yes + unknown <= half else None


@pytest.mark.parametrize("rule", MAKE)
@pytest.mark.parametrize("size", [2, 3])
async def test_truth_table(bench, rule, size):
    for rewards in itertools.product([1.0, 0.0, None], repeat=size):
        parts = [Part(name, reward) for name, reward in zip(NAMES, rewards, strict=False)]
        verdict = await bench.judge(MAKE[rule](*parts), "text")
        assert verdict.reward == expected(rule, list(rewards)), (rule, rewards)
        assert verdict.passed == (verdict.reward == 1.0)
        # Whatever was not asked could not have changed it.
        unknown = [i for i, part in enumerate(parts) if not part.asked]
        for others in itertools.product([1.0, 0.0, None], repeat=len(unknown)):
            changed = list(rewards)
            for place, other in zip(unknown, others, strict=True):
                changed[place] = other
            assert expected(rule, changed) == verdict.reward, (rule, rewards, changed)


async def test_every_check_is_kept(bench):
    first = Part("first", 1.0)
    first.verdict = Verdict.of(
        True, checks=(Check(name="inner", passed=True),), metrics={"m": 2.0}, flags=("odd",)
    )
    verdict = await bench.judge(all_of(first, Part("second", 0.0), Part("third", 1.0)), "x")
    assert [(check.name, check.passed) for check in verdict.checks] == [
        ("first", True),
        ("first/inner", True),
        ("second", False),
        ("third", None),
    ]
    assert "not run" in verdict.checks[-1].detail
    assert verdict.metrics == {"first.m": 2.0, "first.reward": 1.0, "second.reward": 0.0}
    assert verdict.flags == ("odd",)
    assert (verdict.verifier, verdict.kind) == ("all", "formal")


async def test_graded_parts(bench):
    half, most = Part("half", 0.5, passed=False), Part("most", 0.9, passed=True)
    assert (await bench.judge(all_of(half, most), "x")).reward == 0.5
    best = await bench.judge(any_of(half, most), "x")
    assert (best.reward, best.passed) == (0.9, True)


@pytest.mark.parametrize(
    ("rewards", "threshold", "reward"),
    [
        ((1.0, 0.0), None, 0.75),
        ((1.0, 0.0), 0.75, 1.0),
        ((1.0, 0.0), 0.76, 0.0),
        ((1.0, 1.0), None, 1.0),
        ((1.0, None), 0.5, None),
        ((0.0, None), 0.5, None),
    ],
)
async def test_weighted(bench, rewards, threshold, reward):
    parts = [(Part("a", rewards[0]), 3.0), (Part("b", rewards[1]), 1.0)]
    assert (await bench.judge(weighted(parts, threshold=threshold), "x")).reward == reward


async def test_a_heuristic_may_only_lower(bench):
    for formal, informal in itertools.product([1.0, 0.0, None], repeat=2):
        gate = gated(Part("formal", formal), Part("informal", informal, "heuristic"))
        verdict = await bench.judge(gate, "x")
        assert not verdict.passed or formal == 1.0
        assert gate.kind == "formal"


def test_kinds():
    formal, informal = Part("f", 1.0), Part("h", 1.0, "heuristic")
    assert all_of(formal, Part("g", 1.0)).kind == "formal"
    assert any_of(formal, informal).kind == all_of(formal, informal).kind == "heuristic"


async def test_an_error_is_an_error(bench):
    with pytest.raises(VerifierError, match="broken"):
        await bench.judge(any_of(Broken("a"), Part("b", 1.0)), "x")
    settled = any_of(Part("b", 1.0), Broken("a"))
    assert (await bench.judge(settled, "x")).passed


async def test_functions_and_names_are_parts(bench):
    short = verifier(lambda text: len(text) < 5, name="short", in_process=True)
    both = all_of("answer", short)
    assert (await bench.judge(both, "42", "42")).passed
    assert not (await bench.judge(both, "the answer is 42", "42")).passed


@pytest.mark.parametrize(
    "make",
    [
        lambda: all_of(Part("a", 1.0)),
        lambda: all_of(Part("a", 1.0), Part("a", 1.0)),
        lambda: gated(Part("a", 1.0, "heuristic"), Part("b", 1.0)),
        lambda: weighted([(Part("a", 1.0), -1.0)]),
        lambda: weighted([(Part("a", 1.0), float("nan"))]),
        lambda: weighted([(Part("a", 1.0), 1.0)], threshold=0.0),
    ],
)
def test_what_is_refused(make):
    with pytest.raises(ConfigError):
        make()
