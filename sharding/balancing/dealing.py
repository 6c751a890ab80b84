"""Dealing items to the rows of a phase: which row of which replica computes an item, and where in it.

A phase has rows of its own, as many in every replica, which have one of a few capacities. Items are dealt so that rows
get even sums of lengths. Everything is decided from lengths, so that every host decides the same.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from configs.errors import UserError
from sharding.balancing.postbalancing.greedy import largest_first


class DealingError(UserError):
    """Items do not fit into the rows of a phase.

    Attributes:
        sufficient: A capacity of a row with which they fit.
    """

    def __init__(self, items: int, rows: int, capacity: int, sufficient: int) -> None:
        super().__init__(f"{items} items do not fit into {rows} rows of {capacity}; rows of {sufficient} hold them")
        self.sufficient = sufficient


@dataclasses.dataclass(frozen=True)
class DealtItems:
    """Where items lie.

    Attributes:
        rows: Row of each item.
        places: Where it begins in its row.
    """

    rows: Int[np.ndarray, " k"]
    places: Int[np.ndarray, " k"]


def deal_items(lengths: Int[np.ndarray, " k"], rows: int, capacities: Sequence[int]) -> DealtItems:
    """Deals items, longest first, to the row with the least sum, so that rows and replicas get even sums.

    Where a row would hold more than it can then, or would need a larger capacity than it has to, rows are filled
    first-fit, longest first. The items of a row lie side by side, in the order given.

    Args:
        lengths: Lengths of the items.
        rows: Rows of the phase.
        capacities: Sums of the lengths that a row may hold, ascending. No row holds more than the smallest of them
            with which the items fit in either way.

    Raises:
        DealingError: The items do not fit with the largest capacity.
    """
    descending = np.argsort(-lengths, kind="stable")
    row_of = np.empty(len(lengths), np.int64)
    row_of[descending], sums = largest_first(lengths[descending], np.zeros(rows, np.int64))
    even, least = int(sums.max()), max(int(lengths.max(initial=0)), -(-int(lengths.sum()) // rows))
    for capacity in capacities:
        if capacity >= even:
            break
        if capacity >= least:
            fitting = _deal_first_fit(lengths, descending.tolist(), rows, capacity)
            if fitting is not None:
                row_of = fitting
                break
    else:
        raise DealingError(len(lengths), rows, capacities[-1], even)
    by_row = np.argsort(row_of, kind="stable")
    ends = np.cumsum(lengths[by_row])
    begins = ends - lengths[by_row]
    first_of_row = np.searchsorted(row_of[by_row], np.arange(rows))
    row_begins = np.append(begins, 0)[np.minimum(first_of_row, len(begins))]
    places = np.empty(len(lengths), np.int64)
    places[by_row] = begins - row_begins[row_of[by_row]]
    return DealtItems(row_of, places)


def _deal_first_fit(
    lengths: Int[np.ndarray, " k"], descending: list[int], rows: int, capacity: int
) -> Int[np.ndarray, " k"] | None:
    """The row of each item, first-fit, longest first; None if an item finds no room."""
    room = np.full(rows, capacity)
    row_of = np.zeros(len(lengths), np.int64)
    for item in descending:
        has_room = room >= lengths[item]
        if not has_room.any():
            return None
        row = int(has_room.argmax())
        room[row] -= lengths[item]
        row_of[item] = row
    return row_of
