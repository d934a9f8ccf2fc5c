"""Seconds of states and stages add up, in bins along the run's own clock."""

import pytest

from quintain.messages import assistant
from quintain.rollouts.host import Job
from quintain.task import Task
from quintain.training.timeline import Timeline, width
from quintain.trajectory import Action

from .builders import span


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def job(number):
    return Job(Task(id=f"t{number}", prompt="?"), "train", 0)


def test_states_and_stages_are_added_up():
    clock = Clock()
    timeline = Timeline(5.0, clock)
    timeline.enters(job(1), "queue")
    timeline.enters(job(2), "policy")
    clock.now += 0.5
    timeline.learner("update")
    timeline.enters(job(1), "policy")
    clock.now += 1.0
    timeline.enters(job(1), None)
    timeline.enters(job(2), "environment")
    clock.now += 1.5
    (first, values), (second, later), (third, _) = timeline.bins()
    assert (first, second, third) == (5, 6, 7)
    assert values == pytest.approx(
        {
            "learner/rollouts": 0.5,
            "learner/update": 0.5,
            "generation": 1.0,
            "rollouts/queue": 0.5,
            "rollouts/policy": 1.5,
        }
    )
    assert later["learner/update"] == pytest.approx(1.0)
    assert later["generation"] == pytest.approx(0.5)
    assert timeline.bins() == []
    assert timeline.step() == pytest.approx(
        {
            "time/learner/rollouts": 0.5,
            "time/learner/update": 2.5,
            "time/generation": 1.5,
            "time/rollouts/queue": 0.5,
            "time/rollouts/policy": 2.5,
            "time/rollouts/environment": 1.5,
        }
    )
    clock.now += 0.25
    assert timeline.step() == pytest.approx(
        {"time/learner/update": 0.25, "time/rollouts/environment": 0.25}
    )


def test_it_knows_who_is_where_and_since_when():
    clock = Clock()
    timeline = Timeline(0.0, clock)
    left = []
    timeline.on_retry = lambda job: left.append(job.task.id)
    timeline.enters(job(1), "queue")
    timeline.enters(job(1), "policy")
    timeline.acts(job(1), Action(message=assistant("x"), tokens=(span([1], [2], version=3),)))
    clock.now += 2
    assert timeline.age_s(("t1", 0)) == pytest.approx(2)
    assert timeline.newest == {("t1", 0): 3}
    assert left == []
    timeline.enters(job(1), "queue")
    assert left == ["t1"]
    timeline.enters(job(1), None)
    assert not timeline.stages
    assert not timeline.newest


def test_bins_grow_with_the_run():
    assert [width(at) for at in (0, 599, 600, 7199, 7200)] == [1, 1, 10, 10, 60]
