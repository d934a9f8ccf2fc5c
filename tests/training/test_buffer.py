"""Pacing: nothing starts that would be too old in order, nothing waits for ever, none is lost."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.training.buffer import Buffer

from .builders import span, trajectory


def sample(reward, version=0):
    return trajectory([span([1], [2], version=version)], reward=reward)


def fill(buffer, ticket, rewards, version=0):
    for place, reward in enumerate(rewards):
        buffer.put(ticket, place, sample(reward, version))


def test_refills_are_bounded_and_given_back_each_step():
    buffer = Buffer(2, 2, max_staleness=1, refills=1, steps_left=3)
    for ticket in range(4):
        assert buffer.may_start
        buffer.start(ticket)
    assert not buffer.may_start
    fill(buffer, 0, [1, 1])
    assert buffer.may_start  # filtered: another may take its place
    fill(buffer, 1, [0, 0])  # no refill is left: it fills the step up
    fill(buffer, 2, [0, 1])
    assert buffer.full
    assert not buffer.may_start
    groups, filtered = buffer.take()
    assert [g.ticket for g in groups] == [1, 2]
    assert [g.ticket for g in filtered] == [0]
    fill(buffer, 3, [1, 1])
    assert len(buffer.filtered) == 1


def test_oldest_complete_group_first():
    buffer = Buffer(2, 2, max_staleness=1, refills=0, steps_left=2)
    for ticket in range(4):
        buffer.start(ticket)
    for ticket in (3, 1, 2):
        fill(buffer, ticket, [0, 1])
    assert [g.ticket for g in buffer.take()[0]] == [1, 2]
    buffer.trained(1)
    assert not buffer.full


def test_finished_members_are_not_lost_to_a_slow_one():
    buffer = Buffer(1, 4, max_staleness=2, refills=0, steps_left=9)
    buffer.start(0)
    fill(buffer, 0, [1, 0, 1])
    assert not buffer.full
    for version in (1, 2):
        buffer.start(version)
        fill(buffer, version, [0, 1, 0, 1], version - 1)
        assert [g.ticket for g in buffer.take()[0]] == [version]
        buffer.trained(version)
    # One version more and the three would be too old: they go first, with the baseline they have.
    buffer.start(3)
    fill(buffer, 3, [0, 1, 0, 1], 2)
    first, whole = buffer.take()[0]
    assert (first.ticket, first.chosen) == (0, (True, True, True, False))
    assert first.signal
    assert sum(whole.chosen) == 1, "a step never has more than its samples"
    assert buffer.partial == {0: [0, 1, 2], 3: [0]}
    buffer.trained(3)
    # The slow one arrives, and is trained against all four rewards.
    buffer.put(0, 3, sample(0, version=3))
    late, rest = buffer.take()[0]
    assert (late.ticket, late.chosen) == (0, (False, False, False, True))
    assert late.rewards_G.tolist() == [1, 0, 1, 0]
    assert rest.chosen == (False, True, True, True)
    assert buffer.partial == {}


def test_members_without_signal_wait_for_the_slow_one():
    buffer = Buffer(1, 2, max_staleness=1, refills=0, steps_left=9, version=5)
    buffer.start(0)
    buffer.put(0, 0, sample(1, version=4))
    assert not list(buffer._releasable())


def test_what_a_former_process_trained_is_not_trained_again():
    buffer = Buffer(1, 3, max_staleness=1, refills=0, steps_left=9)
    buffer.start(0, trained=[0, 2])
    buffer.start(1)
    fill(buffer, 0, [1, 0, 0])
    fill(buffer, 1, [1, 0, 0])
    first, second = buffer.take()[0]
    assert (first.ticket, first.chosen) == (0, (False, True, False))
    assert sum(second.chosen) == 2


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(2, 3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 6),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_every_schedule_ends_and_trains_each_sample_once(
    per_step, size, bound, refills, steps, quiet, seed
):
    """Any order of finishing: all steps happen, nothing is left over, the bounds hold."""
    choose = random.Random(seed)
    buffer = Buffer(per_step, size, bound, refills, steps)
    running, ticket, busy = [], 0, False
    trained, filtered = Counter(), 0
    while True:
        moves = ["start"] * buffer.may_start + ["finish"] * bool(running)
        moves += ["take"] * (buffer.full and not busy and bool(buffer.steps_left))
        moves += ["trained"] * busy
        if not moves:
            break
        move = choose.choice(moves)
        if move == "start":
            buffer.start(ticket)
            rewards = [0] * size if choose.random() < quiet else [1] + [0] * (size - 1)
            running += [(ticket, place, rewards[place], buffer.version) for place in range(size)]
            ticket += 1
        elif move == "finish":
            number, place, reward, version = running.pop(choose.randrange(len(running)))
            buffer.put(number, place, sample(reward, version))
        elif move == "take":
            groups, replaced = buffer.take()
            busy = True
            filtered += len(replaced)
            taken = [(g.ticket, place) for g in groups for place, _ in g.members]
            assert len(taken) == per_step * size
            trained.update(taken)
        else:
            busy = False
            buffer.trained(buffer.version + 1)
        assert buffer.untrained + buffer.training <= (bound + 1) * per_step * size
    assert buffer.steps_left == 0
    assert not running
    assert not buffer.open
    assert set(trained.values()) == {1}
    assert filtered <= steps * refills
    assert len(trained) + filtered * size == ticket * size


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_in_order_samples_are_never_too_old(per_step, bound, seed):
    """When groups finish in order, the pacing alone keeps every sample within the bound."""
    choose = random.Random(seed)
    buffer = Buffer(per_step, 2, bound, 0, steps_left=20)
    running, ticket, busy = [], 0, False
    while buffer.steps_left or busy:
        moves = ["start"] * buffer.may_start + ["finish"] * bool(running)
        moves += ["take"] * (buffer.full and not busy) + ["trained"] * busy
        move = choose.choice(moves)
        if move == "start":
            buffer.start(ticket)
            running.append((ticket, buffer.version))
            ticket += 1
        elif move == "finish":
            number, version = running.pop(0)
            fill(buffer, number, [0, 1], version)
        elif move == "take":
            for group in buffer.take()[0]:
                for _, member in group.members:
                    assert buffer.version - member.versions[0] <= bound
            busy = True
        else:
            busy = False
            buffer.trained(buffer.version + 1)
