"""A sample of verdicts labelled by people, and the error rates that follow."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import quintain as q
from quintain.cli.review import ask_all
from quintain.errors import ConfigError, StoreError
from quintain.evals.review import RATES, Review
from quintain.statistics import Stratum, error_rates
from quintain.verdict import Verdict


async def careless(text, answer):
    """Passes whatever has a 1 in it; flags what has a 9."""
    return Verdict.of("1" in text, flags=("odd",) if "9" in text else ())


@pytest.fixture
def folder(tmp_path):
    rows = [
        {"id": f"t{i:02}", "prompt": str(i), "answer": str(i), "split": "eval"} for i in range(40)
    ]
    env = q.Environment(rows, careless, name="numbers")
    q.evaluate(env, q.scripted(lambda messages, tools, seed: messages[-1].text), run=tmp_path / "r")
    return tmp_path / "r"


def verdicts(review):
    return {name: len(stratum["keys"]) for name, stratum in review.plan["strata"].items()}


def test_the_draw(folder):
    with Review.open(folder, passes=5, fails=7, seed=3) as review:
        # 1, 10…19, 21, 31 pass; 9, 19, 29, 39 are flagged, and 19 passes.
        sizes = {name: stratum["size"] for name, stratum in review.plan["strata"].items()}
        assert sizes == {"flagged passed": 1, "flagged failed": 3, "passed": 12, "failed": 24}
        drawn = {"flagged passed": 1, "flagged failed": 3, "passed": 5, "failed": 7}
        assert verdicts(review) == drawn
        first = list(review.items)
    with Review.open(folder, passes=12, fails=0, fresh=True, seed=3) as again:
        # A larger draw of the same seed begins as the smaller one.
        assert verdicts(again)["passed"] == 12
        assert [key for key in again.items if key in first[:9]] == first[:9]
    with Review.open(folder, passes=1) as same:
        assert len(same.items) == 16
    with pytest.raises(ConfigError, match="it holds: eval"):
        Review.open(folder, purpose="train", fresh=True)
    with pytest.raises(StoreError):
        Review.open(folder.parent / "none")
    # After all this the lock is free and the run is what it was.
    assert q.EvalRun.open(folder).scores.samples == 40


def test_labels_and_rates(folder):
    with Review.open(folder, passes=12, fails=24) as review:
        assert math.isnan(review.rates().false_positive.value)
        for item in review.todo:
            assert "verdict" in str(item)
            assert "reward" not in str(item)  # blind
            deserves = int(item.key.task_id[1:]) % 2 == 0
            review.label(item.key, "accept" if deserves else "reject", "by parity", by="me")
        assert not review.todo
        # Of 13 passes, 1 11 13 15 17 19 21 31 are odd; of 27 fails 0 2 4 6 8 20 22 … 38 are even.
        rates = review.rates()
        assert rates.wrong_passes.value == pytest.approx(8 / 13)
        assert rates.false_positive.value == pytest.approx(8 / (8 + 12))
        assert rates.false_negative.value == pytest.approx(15 / (15 + 5))
        for rate in (rates.false_positive, rates.false_negative, rates.wrong_failures):
            assert 0 < rate.low < rate.value < rate.high < 1
        told = review.to_json()
        assert (told["labelled"], told["to_label"], len(told["wrong"])) == (40, 0, 23)
        key = next(iter(review.items))
        review.label(key, "unsure")
        assert review.labels[key].label == "unsure"
        assert sum(stratum.unsure for stratum in review.strata.values()) == 1
        with pytest.raises(ConfigError, match="a label is one of"):
            review.label(key, "maybe")
        with pytest.raises(ConfigError, match="not among"):
            review.label(key._replace(task_id="other"), "accept")
    reading = Review.read(folder)
    assert len(reading.labels) == 40
    with pytest.raises(StoreError, match="reading only"):
        reading.label(key, "accept")
    reading.close()


def test_files(folder, tmp_path):
    path = tmp_path / "todo.jsonl"
    with Review.open(folder, passes=2, fails=2) as review:
        assert review.export_jsonl(path) == 8
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert "── assistant" in rows[0]["transcript"]
        rows[0]["label"], rows[1]["label"] = "accept", "nonsense"
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(ConfigError, match=r"todo\.jsonl:2: label 'nonsense'"):
            review.import_jsonl(path)
        assert not review.labels  # none is taken where one is wrong
        rows[1].update(label="reject", note="no")
        path.write_text("\n".join(map(json.dumps, rows)))
        assert review.import_jsonl(path, by="them") == 2
        assert len(review.todo) == 6
        path.write_text('{"label": "accept"}')
        with pytest.raises(ConfigError, match=r"todo\.jsonl:1"):
            review.import_jsonl(path)


def test_questions_and_answers(folder, capsys):
    typed = iter(["what", "a", "fine", "s", "Reject", "", "q"])
    with Review.open(folder, passes=2, fails=2) as review:
        ask_all(review, lambda text: next(typed), "me")
        given = list(review.labels.values())
        assert [(one.label, one.note, one.by) for one in given] == [
            ("accept", "fine", "me"),
            ("reject", "", "me"),
        ]
        assert len(review.todo) == 6
        review.keep_rates()
        assert len(review.store.event_rows(RATES)) == 1
    shown = capsys.readouterr().out
    assert "1 of 8" in shown
    assert "solved: reward 1" in shown  # told after the label


def test_weights_are_those_of_the_verdicts():
    # All 10 flagged passes looked at, half wrong; 10 of 990 others, none wrong.
    strata = [Stratum(True, 10, 5, 5), Stratum(True, 990, 0, 10), Stratum(False, 1000, 0, 20)]
    rates = error_rates(strata)
    assert rates.wrong_passes.value == pytest.approx(5 / 1000)
    assert rates.false_positive.value == pytest.approx(5 / 1005)
    assert rates.wrong_passes.high > 0.2  # 0 of 10 says little of 990


def test_unsure_widens_and_nothing_says_nothing():
    sure = error_rates([Stratum(True, 50, 0, 20), Stratum(False, 50, 0, 20)])
    unsure = error_rates([Stratum(True, 50, 0, 20, 10), Stratum(False, 50, 0, 20)])
    assert unsure.false_positive.high > sure.false_positive.high
    nothing = error_rates([Stratum(True, 50, 0, 0), Stratum(False, 50, 0, 0)])
    assert (nothing.false_positive.low, nothing.false_positive.high) == (0.0, 1.0)
    assert error_rates([]).false_positive.n == 0


def test_intervals_hold_the_truth():
    rng = np.random.default_rng(0)
    sizes, shares, looked = (60, 400, 900), (0.5, 0.05, 0.02), (60, 40, 40)
    kinds = (True, True, False)
    wrong_passes = sizes[0] * shares[0] + sizes[1] * shares[1]
    right_fails = sizes[2] * (1 - shares[2])
    truth = wrong_passes / (wrong_passes + right_fails)
    held = 0
    for _ in range(200):
        strata = [
            Stratum(kind, size, wrong := int(rng.binomial(n, share)), n - wrong)
            for kind, size, share, n in zip(kinds, sizes, shares, looked, strict=True)
        ]
        rate = error_rates(strata).false_positive
        held += rate.low <= truth <= rate.high
    assert held >= 190
