"""Pairings are as large as they can be."""

import itertools
import random

from quintain.verifiers.matching import assignment


def largest(fits):
    rows, columns = len(fits), len(fits[0]) if fits else 0
    places = [*range(columns), *[None] * rows]
    return max(
        sum(c is not None and fits[r][c] for r, c in enumerate(chosen))
        for chosen in itertools.permutations(places, rows)
    )


def test_as_large_as_brute_force():
    draw = random.Random(5)
    for _ in range(150):
        rows, columns = draw.randint(1, 4), draw.randint(0, 4)
        fits = [[draw.random() < 0.4 for _ in range(columns)] for _ in range(rows)]
        pairs = assignment(fits)
        assert all(fits[row][column] for row, column in pairs.items())
        assert len(set(pairs.values())) == len(pairs) == largest(fits)


def test_a_long_chain():
    size = 300
    fits = [[column in (row, row + 1) for column in range(size)] for row in range(size)]
    fits[-1] = [column == 0 for column in range(size)]
    assert len(assignment(fits)) == size
