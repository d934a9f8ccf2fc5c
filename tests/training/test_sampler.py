"""Which task comes next: repeatable, adaptive, resumable."""

from collections import Counter

import numpy as np
import pytest

from quintain.envs.tasks import Tasks
from quintain.errors import ConfigError, RegistryError, TrainingError
from quintain.messages import user
from quintain.record import canonical
from quintain.task import Task
from quintain.training.sampler import make_sampler

SOURCE = Tasks(
    Task(id=f"t{i}", prompt=(user(str(i)),), split="train" if i < 10 else "eval") for i in range(12)
)
OPTIONS = {"uniform": {}, "band": {}, "curriculum": {}}


def make(name, pool=100, seed=3, **options):
    return make_sampler(name, SOURCE, seed, pool, options)


def ids(sampler, counts):
    return [sampler.draw(count).id for count in counts]


@pytest.mark.parametrize("name", OPTIONS)
def test_draws_are_a_function_of_number_and_state(name):
    one, other = make(name), make(name)
    assert ids(one, range(60)) == [other.draw(count).id for count in reversed(range(60))][::-1]
    assert ids(one, range(60)) != ids(make(name, seed=4), range(60))
    assert set(ids(one, range(60))) == {f"t{i}" for i in range(10)}
    assert len(make(name, pool=4).tasks) == 4
    for sampler in (one, other):
        sampler.seen("t1", [1.0, 1.0])
        sampler.seen("t2", [0.0, 1.0])
        sampler.seen("nobody", [1.0])
    assert ids(one, range(60)) == ids(other, range(60))
    third = make(name)
    third.seen("t5", [0.0])  # what it knew is replaced
    third.restore(one.state())
    assert ids(third, range(60)) == ids(one, range(60))
    assert canonical(third.state()) == canonical(one.state())


def test_uniform_takes_every_task_once_a_pass():
    for turn in range(3):
        drawn = ids(make("uniform"), range(10 * turn, 10 * turn + 10))
        assert sorted(drawn) == sorted(f"t{i}" for i in range(10))


def test_band_leaves_out_what_is_too_easy_or_too_hard_but_looks_again():
    sampler = make("band", low=0.2, high=0.8, explore=0.1)
    for i in range(4):
        sampler.seen(f"t{i}", [float(i % 2)] * 8)  # 0 or 1
    sampler.seen("t4", [0.0, 1.0])
    counts = Counter(ids(sampler, range(2000)))
    outside = sum(counts[f"t{i}"] for i in range(4)) / 2000
    assert 0.02 < outside < 0.06  # 4 of 10 tasks, one time in ten
    assert all(counts[f"t{i}"] > 200 for i in range(4, 10))
    # The rate follows the policy: what was too hard comes back.
    sampler.seen("t0", [0.5] * 8)
    assert Counter(ids(sampler, range(2000)))["t0"] > 100


def test_band_goes_on_when_nothing_is_inside():
    sampler = make("band")
    for i in range(10):
        sampler.seen(f"t{i}", [1.0] * 4)
    assert set(ids(sampler, range(50))) == {f"t{i}" for i in range(10)}


def test_curriculum_by_hand_and_harder_tasks_as_the_policy_gets_better():
    sampler = make("curriculum", explore=0.01)
    for i in range(10):
        sampler.seen(f"t{i}", [1.0] * 4 if i < 5 else [0.0, 0.0, 1.0, 0.0] if i < 8 else [0.0] * 4)
    # one sample of ½ is added: (4 + ½)/5, (1 + ½)/5, ½/5
    rates = np.array([0.9] * 5 + [0.3] * 3 + [0.1] * 2)
    assert np.allclose(sampler.weights(), 4 * rates * (1 - rates))
    counts = Counter(ids(sampler, range(3000)))
    expected = 3000 * sampler.weights() / sampler.weights().sum()
    found = np.array([counts[f"t{i}"] for i in range(10)])
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected.max())
    before = sampler.weights()[8]
    sampler.seen("t8", [1.0, 0.0, 1.0, 0.0])
    assert sampler.weights()[8] > 2 * before
    easier = make("curriculum", target=0.8)
    easier.seen("t0", [1.0] * 4)
    easier.seen("t1", [0.0] * 4)
    assert easier.weights()[0] > 5 * easier.weights()[1]


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="band needs 0 <= low < high"):
        make("band", low=0.9, high=0.1)
    with pytest.raises(ConfigError, match="explore"):
        make("curriculum", explore=0)
    with pytest.raises(ConfigError, match="target"):
        make("curriculum", target=1.0)
    with pytest.raises(ConfigError, match="width"):
        make("band", width=3)
    with pytest.raises(RegistryError, match="curriculum"):
        make("currculum")
    empty = Tasks([Task(id="x", prompt=(user("x"),), split="eval")])
    with pytest.raises(TrainingError, match="no task of split"):
        make_sampler("band", empty, 0, 5, {})
