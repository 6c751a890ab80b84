"""Dealing items to the rows of a phase: which row of which replica computes an item, and where in it.

A phase has rows of its own, of a fixed capacity and as many in every replica. Items are dealt so that the replicas get
even sums of lengths. Everything is decided from lengths, so that every host decides the same.
"""

import dataclasses

import numpy as np
from jaxtyping import Int

from configs.errors import UserError


class DealingError(UserError):
    """Items do not fit into the rows of a phase; the message says what they take and what there is."""


@dataclasses.dataclass(frozen=True)
class DealtItems:
    """Where items lie.

    Attributes:
        rows: Row of each item.
        places: Where it begins in its row.
    """

    rows: Int[np.ndarray, " k"]
    places: Int[np.ndarray, " k"]


def deal_items(lengths: Int[np.ndarray, " k"], rows: int, replicas: int, capacity: int) -> DealtItems:
    """Deals items, longest first, to the replica with the least sum that has room, and to its first row that has room.

    Where that leaves an item without room, rows are filled first-fit, longest first, whatever replica they belong to.
    The items of a row lie side by side, in the order given.

    Args:
        lengths: Lengths of the items.
        rows: Rows of the phase, those of a replica side by side.
        replicas: Replicas, which divide the rows evenly.
        capacity: Sum of the lengths that a row holds.

    Raises:
        DealingError: The items do not fit.
    """
    if rows % replicas:
        raise ValueError(f"{replicas} replicas do not divide {rows} rows")
    descending = np.argsort(-lengths, kind="stable").tolist()
    row_of = _deal_evenly(lengths, descending, rows, replicas, capacity)
    if row_of is None:
        row_of = _deal_first_fit(lengths, descending, rows, capacity)
    if row_of is None:
        longest = int(lengths.max())
        if longest > capacity:
            raise DealingError(f"an item takes {longest}, and a row of the phase holds {capacity}")
        raise DealingError(
            f"{len(lengths)} items, which take {int(lengths.sum())} in all, do not fit into {rows} rows of {capacity}; "
            f"rows of {_sufficient_capacity(lengths, descending, rows)} hold them"
        )
    by_row = np.argsort(row_of, kind="stable")
    ends = np.cumsum(lengths[by_row])
    begins = ends - lengths[by_row]
    first_of_row = np.searchsorted(row_of[by_row], np.arange(rows))
    row_begins = np.append(begins, 0)[np.minimum(first_of_row, len(begins))]
    places = np.empty(len(lengths), np.int64)
    places[by_row] = begins - row_begins[row_of[by_row]]
    return DealtItems(row_of, places)


def _deal_evenly(
    lengths: Int[np.ndarray, " k"], descending: list[int], rows: int, replicas: int, capacity: int
) -> Int[np.ndarray, " k"] | None:
    """The row of each item, with even sums over replicas; None if an item finds no room."""
    room = np.full((replicas, rows // replicas), capacity)
    row_of = np.zeros(len(lengths), np.int64)
    for item in descending:
        length = lengths[item]
        free = np.where(room.max(axis=1) >= length, room.sum(axis=1), -1)
        replica = int(free.argmax())
        if free[replica] < 0:
            return None
        row = int((room[replica] >= length).argmax())
        room[replica, row] -= length
        row_of[item] = replica * room.shape[1] + row
    return row_of


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


def _sufficient_capacity(lengths: Int[np.ndarray, " k"], descending: list[int], rows: int) -> int:
    """A capacity with which the items fit: the longest row if each item goes to the row with the least sum."""
    sums = np.zeros(rows, np.int64)
    for item in descending:
        sums[sums.argmin()] += lengths[item]
    return int(sums.max())
