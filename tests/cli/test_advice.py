"""Which sandbox is recommended for what."""

from __future__ import annotations

import pytest

from quintain.cli.advice import CORE, costs, recommend
from quintain.protocols import Probe


def probe(backend, fresh_ms=5.0, without=(), available=True, **details):
    if not available:
        return Probe(backend, available=False, advice="why not")
    times = {"open": 1.0, "exec_true": 2.0, "close": 2.0, "fresh_true": fresh_ms}
    return Probe(
        backend,
        available=True,
        enforced=tuple(CORE - set(without)),
        missing=dict.fromkeys(without, "not here"),
        details={"latency_ms": times, **details},
    )


def use(probes):
    return {line["for"].split(",")[0]: line["use"] for line in recommend(probes)}


def test_the_fastest_that_holds_is_for_many():
    found = use([probe("native", 4.0), probe("docker", 400.0), probe("weak", 1.0)])
    assert found["training and evals"] == "native"
    assert found["whole Dockerfiles and images of registries"] == "docker"
    found = use([probe("native", 4.0, without=["memory"]), probe("docker", 400.0)])
    assert found["training and evals"] == "docker"


@pytest.mark.parametrize(
    ("probes", "wanted"),
    [
        ([probe("native", without=["memory"])], "native --allow-weaker"),
        ([probe("native", available=False), probe("weak")], "weak, if that is acceptable"),
        ([probe("native", available=False)], "none here"),
    ],
)
def test_what_is_weaker_is_never_recommended_as_whole(probes, wanted):
    assert use(probes)["training and evals"] == wanted


def test_what_is_missing_is_told_with_the_way_to_it():
    lines = recommend(
        [probe("native"), probe("gvisor", available=False), probe("ray", available=False)]
    )
    by = {line["for"]: line for line in lines}
    assert "runsc" in by["code that may attack the kernel"]["why"]
    assert by["more than one machine"]["why"] == "why not"
    found = recommend([probe("native"), probe("microvm"), probe("gvisor")])
    assert found[1]["use"] == "microvm"


def test_costs_in_words():
    found = probe("native", density={"memory_mb_each": 0.5, "fits": 12_000})
    assert costs(found).startswith("fresh, run, gone 5 ms (open 1, run 2, close 2); about 0.5 MB")
    assert "12,000" in costs(found)
    assert costs(Probe("x", available=True)) == ""
