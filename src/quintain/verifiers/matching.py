"""Pairing what is expected with what was found, where the order does not matter."""

from __future__ import annotations

from collections.abc import Sequence


def assignment(fits: Sequence[Sequence[bool]]) -> dict[int, int]:
    """A largest pairing of rows with columns that fit: row to column.

    Kuhn's augmenting paths, without recursion so that no input is too deep.

    Args:
        fits: of each row, whether it may go with each column.
    """
    row_of: dict[int, int] = {}
    for start in range(len(fits)):
        came_from: dict[int, int] = {}
        queue, free = [start], -1
        while queue and free < 0:
            row = queue.pop()
            for column, fit in enumerate(fits[row]):
                if not fit or column in came_from:
                    continue
                came_from[column] = row
                if column not in row_of:
                    free = column
                    break
                queue.append(row_of[column])
        held = {row: column for column, row in row_of.items()}
        while free >= 0:
            row = came_from[free]
            row_of[free], free = row, held.get(row, -1)
            if row == start:
                break
    return {row: column for column, row in row_of.items()}
