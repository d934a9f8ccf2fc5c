"""Pacing: nothing starts that would be too old in order, and nothing waits for ever."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.training.buffer import Buffer

from .builders import group, span, trajectory


def a_group(ticket, signal=True):
    return group(
        trajectory([span([1], [2])], reward=1.0),
        trajectory([span([1], [2])], reward=0.0 if signal else 1.0),
        ticket=ticket,
    )


def test_refills_are_bounded_and_given_back_each_step():
    buffer = Buffer(2, 1, refills=1, steps=3)
    for _ in range(4):
        assert buffer.may_start
        buffer.start()
    assert not buffer.may_start
    buffer.put(a_group(0, signal=False))
    assert buffer.may_start  # filtered: another may take its place
    buffer.put(a_group(1, signal=False))  # no refill is left: it fills the step up
    buffer.put(a_group(2))
    assert buffer.full
    assert not buffer.may_start
    groups, filtered = buffer.take()
    assert [g.ticket for g in groups] == [1, 2]
    assert [g.ticket for g in filtered] == [0]
    buffer.put(a_group(3, signal=False))
    assert len(buffer.filtered) == 1


def test_oldest_first():
    buffer = Buffer(2, 1, refills=0, steps=2)
    for _ in range(4):
        buffer.start()
    for ticket in (3, 1, 2):
        buffer.put(a_group(ticket))
    assert [g.ticket for g in buffer.take()[0]] == [1, 2]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 3),
    st.integers(1, 8),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_every_schedule_ends_in_time(per_step, bound, refills, steps, quiet, seed):
    """Any order of finishing: all steps happen, nothing is left over, the bounds hold."""
    choose = random.Random(seed)
    buffer = Buffer(per_step, bound, refills, steps)
    running, ticket, version, taken = [], 0, 0, None
    for _ in range(10_000):
        moves = []
        if buffer.may_start:
            moves.append("start")
        if running:
            moves.append("finish")
        if buffer.full and taken is None and buffer.steps_left:
            moves.append("take")
        if taken is not None:
            moves.append("trained")
        if not moves:
            break
        move = choose.choice(moves)
        if move == "start":
            buffer.start()
            running.append((ticket, version))
            ticket += 1
        elif move == "finish":
            number, _ = running.pop(choose.randrange(len(running)))
            buffer.put(a_group(number, signal=choose.random() > quiet))
        elif move == "take":
            taken, _ = buffer.take()
            assert len(taken) == per_step
        else:
            buffer.trained()
            taken, version = None, version + 1
        assert buffer.on_their_way <= (bound + 1) * per_step
    assert version == steps
    assert not running
    assert not buffer.ready
    assert ticket <= steps * (per_step + refills)


@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_in_order_groups_are_never_too_old(per_step, bound, seed):
    """When groups finish in order, the pacing alone keeps every group within the bound."""
    choose = random.Random(seed)
    buffer = Buffer(per_step, bound, 0, steps=20)
    started, running, ticket, version, training = {}, [], 0, 0, None
    while buffer.steps_left or training is not None:
        moves = ["start"] * buffer.may_start + ["finish"] * bool(running)
        moves += ["take"] * (buffer.full and training is None) + ["trained"] * bool(training)
        move = choose.choice(moves)
        if move == "start":
            buffer.start()
            started[ticket] = version
            running.append(ticket)
            ticket += 1
        elif move == "finish":
            buffer.put(a_group(running.pop(0)))
        elif move == "take":
            training, _ = buffer.take()
            assert max(version - started[g.ticket] for g in training) <= bound
        else:
            buffer.trained()
            training, version = None, version + 1
