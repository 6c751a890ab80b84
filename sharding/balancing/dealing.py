"""Dealing items to the rows of a phase: which row of which replica computes an item, and where in it.

A phase has rows of its own, as many in every replica, which have one of a few capacities. Items are dealt so that rows
get even sums of lengths, or even costs, where the cost of an item has a quadratic term. Everything is decided from
lengths, so that every host decides the same. The packing pipeline calls `deal_items` for every step of a phase with
rows of its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from configs.common.errors import UserError
from sharding.balancing.postbalancing.greedy import largest_first

MAX_WHOLE_TOTAL = 1 << 45
"""Float costs are scaled to int64 so that their total times the rows is at most this, far from an overflow."""


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
    """The rows and positions of dealt items.

    Attributes:
        rows: Row of each item.
        places: Position in its row at which each item begins.
    """

    rows: Int[np.ndarray, " k"]
    places: Int[np.ndarray, " k"]


def deal_items(
    lengths: Int[np.ndarray, " k"], rows: int, capacities: Sequence[int], quadratic_cost_weight: float = 0.0
) -> DealtItems:
    """Deals items, longest first, to the row with the least sum, so that rows and replicas get even sums.

    Where a row would hold more than it can then, or would need a larger capacity than it has to, rows are filled
    first-fit, longest first. The items of a row lie side by side, in the order given.

    With a square weight w, items are also dealt to the row with the least cost, the sum of l + w l^2, among the rows
    with room for them within the same capacity. The dealing whose costliest row costs less is taken.

    Args:
        lengths: Lengths of the items.
        rows: Rows of the phase.
        capacities: Sums of the lengths that a row may hold, ascending. No row holds more than the smallest of them
            with which the items fit in either way.
        quadratic_cost_weight: Cost of the square of a length over the cost of the length; 0 for costs that are linear
            in it.

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
    if quadratic_cost_weight:
        even_costs = _deal_costs(lengths, descending, rows, capacity, quadratic_cost_weight)
        if even_costs is not None:
            row_of = min(
                row_of, even_costs, key=lambda assignment: largest_cost(lengths, assignment, quadratic_cost_weight)
            )
    by_row = np.argsort(row_of, kind="stable")
    ends = np.cumsum(lengths[by_row])
    begins = ends - lengths[by_row]
    first_of_row = np.searchsorted(row_of[by_row], np.arange(rows))
    row_begins = np.append(begins, 0)[np.minimum(first_of_row, len(begins))]
    places = np.empty(len(lengths), np.int64)
    places[by_row] = begins - row_begins[row_of[by_row]]
    return DealtItems(row_of, places)


def largest_cost(lengths: Int[np.ndarray, " k"], row_of: Int[np.ndarray, " k"], quadratic_cost_weight: float) -> float:
    """Cost of the costliest row, whose items cost l + w l^2 each.

    Args:
        lengths: Lengths of the items.
        row_of: Row of each item.
        quadratic_cost_weight: Cost of the square of a length over the cost of the length, w.
    """
    float_lengths = lengths.astype(np.float64)
    costs = float_lengths + quadratic_cost_weight * float_lengths**2
    return float(np.bincount(row_of, weights=costs).max(initial=0))


def _deal_costs(
    lengths: Int[np.ndarray, " k"],
    descending: Int[np.ndarray, " k"],
    rows: int,
    capacity: int,
    quadratic_cost_weight: float,
) -> Int[np.ndarray, " k"] | None:
    """Returns the row of each item: items go costliest first to the cheapest row with room for them.

    None if an item finds no room. Longer items cost more, so that the costliest first are the longest first.
    """
    costs = _whole_costs(lengths, rows, quadratic_cost_weight)
    row_of = np.empty(len(lengths), np.int64)
    row_of[descending], _ = largest_first(costs[descending], np.zeros(rows, np.int64))
    if np.bincount(row_of, weights=lengths).max(initial=0) <= capacity:
        return row_of
    room, sums = np.full(rows, capacity), np.zeros(rows, np.int64)
    for item in descending.tolist():
        has_room = room >= lengths[item]
        if not has_room.any():
            return None
        row = int(np.where(has_room, sums, np.iinfo(np.int64).max).argmin())
        room[row] -= lengths[item]
        sums[row] += costs[item]
        row_of[item] = row
    return row_of


def _whole_costs(lengths: Int[np.ndarray, " n"], rows: int, quadratic_cost_weight: float) -> Int[np.ndarray, " n"]:
    """The cost of every item, l + w l^2, as a whole number: scaled so that sums over them cannot overflow.

    Args:
        lengths: Lengths of all items.
        rows: Number of rows to divide them among.
        quadratic_cost_weight: w; lambda = beta / alpha of OrchMLLM (Algorithm 4).
    """
    float_lengths = lengths.astype(np.float64)
    costs = float_lengths + quadratic_cost_weight * float_lengths**2
    scale = MAX_WHOLE_TOTAL / rows / max(float(costs.sum()), 1.0)
    return np.rint(costs * scale).astype(np.int64)


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
