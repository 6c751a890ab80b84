"""Post-balancing into rows of a capacity: even rows of items with sizes in several quantities, as full as can be.

The grouping `post_balanced` of the data pipeline deals the samples of a step so. Rows are even in the first quantity,
and hold no more than their capacity of any.
"""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing.unpadded import balance_unpadded

_LEVELS = 1 << 20  # to which shares of a row are rounded up for balancing without a capacity
_LIGHT_ROWS = 32  # with which the heaviest row may exchange an item
_MAX_EXCHANGES = 256

NO_ROW = -1
"""The row of an item that is left out."""


def balance_within_capacity(
    sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], rows: int, preferred: int
) -> Int[np.ndarray, " n"]:
    """The row of every item; `NO_ROW` for items that are left out.

    Items go to the row with the least of the first quantity that has room for them in all quantities, first the
    preferred ones, then the others, each the largest first (OrchMLLM's Algorithm 1 with a capacity). Rows are then
    filled up: an item that found no room takes the place of a smaller one where there is room for the difference.
    Last, rows are evened out: by `balance_unpadded`, or, if its rows exceed the capacity, by exchanges between the
    fullest row and the emptiest ones.

    Args:
        sizes: Size of every item in each quantity, not negative and not above the capacity.
        capacity: Capacity of a row in each quantity.
        rows: Number of rows.
        preferred: How many of the first items come before the others.
    """
    row_of, sums = _largest_first_with_room(sizes, capacity, rows, preferred)
    _fill_up(sizes, capacity, row_of, sums)
    placed = np.flatnonzero(row_of != NO_ROW)
    even = balance_if_fitting(sizes[placed], capacity, rows)
    if even is None:
        _even_out(sizes, capacity, row_of, sums)
    else:
        row_of[placed] = even
    return row_of


def balance_if_fitting(
    sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], rows: int
) -> Int[np.ndarray, " n"] | None:
    """The row of every item by `balance_unpadded`; None if a row exceeds its capacity. Arguments as above."""
    row_of = balance_unpadded(np.ceil(sizes[:, 0] / capacity[0] * _LEVELS).astype(np.int64), rows)
    fits = all(
        np.bincount(row_of, weights=column, minlength=rows).max() <= most
        for column, most in zip(sizes.T, capacity, strict=True)
    )
    return row_of if fits else None


def _largest_first_with_room(
    sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], rows: int, preferred: int
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "k rows"]]:
    """The row of every item, and the sums of the rows; of rows with equal sums, the one with the fewest items."""
    sums, counts = np.zeros((len(capacity), rows)), np.zeros(rows, np.int64)
    row_of = np.full(len(sizes), NO_ROW)
    for item in np.lexsort((-sizes[:, 0], np.arange(len(sizes)) >= preferred)).tolist():
        has_room = (sums <= (capacity - sizes[item])[:, None]).all(axis=0)
        least = np.where(has_room, sums[0], np.inf)
        row = int(least.argmin())
        if least[row] == np.inf:
            continue
        if counts[row]:
            row = int(np.where(least == least[row], counts, len(sizes)).argmin())
        sums[:, row] += sizes[item]
        counts[row] += 1
        row_of[item] = row
    return row_of, sums


def _fill_up(
    sizes: Float[np.ndarray, "n k"],
    capacity: Float[np.ndarray, " k"],
    row_of: Int[np.ndarray, " n"],
    sums: Float[np.ndarray, "k rows"],
) -> None:
    """Fills rows up, in place, the emptiest first: in each, the exchange is made that adds most, as long as one adds.

    An item of a row, or nothing, is exchanged for one that is left out and in no quantity smaller.
    """
    nothing = np.zeros((1, sizes.shape[1]))
    for row in np.argsort(sums[0], kind="stable").tolist():
        while True:
            held, left = np.flatnonzero(row_of == row), np.flatnonzero(row_of == NO_ROW)
            if not len(left):
                return
            added = sizes[left] - np.concatenate([nothing, sizes[held]])[:, None]  # [nothing + held, left, k]
            allowed = ((added >= 0) & (sums[:, row] + added <= capacity)).all(axis=2)
            gain = np.where(allowed, added[..., 0], 0.0)
            given, taken = np.unravel_index(int(gain.argmax()), gain.shape)
            if gain[given, taken] <= 0:
                break
            if given:
                row_of[held[given - 1]] = NO_ROW
            row_of[left[taken]] = row
            sums[:, row] += added[given, taken]


def _even_out(
    sizes: Float[np.ndarray, "n k"],
    capacity: Float[np.ndarray, " k"],
    row_of: Int[np.ndarray, " n"],
    sums: Float[np.ndarray, "k rows"],
) -> None:
    """Evens out the first quantity, in place: the fullest row gives an item for a smaller one, or for none.

    Each time, the exchange is made that leaves the least in the fuller of the two rows. It ends when none makes the
    fullest row emptier.
    """
    nothing = np.zeros((1, sizes.shape[1]))
    for _ in range(_MAX_EXCHANGES):
        heavy = int(sums[0].argmax())
        light = np.argsort(sums[0], kind="stable")[:_LIGHT_ROWS]
        light = light[sums[0, light] < sums[0, heavy]]
        given = np.flatnonzero(row_of == heavy)
        taken = np.flatnonzero(np.isin(row_of, light))
        if not len(light) or len(given) < 2:
            return
        other = np.concatenate([row_of[taken], light])  # the row of an item that is taken, or of nothing
        smaller = np.concatenate([sizes[taken], np.repeat(nothing, len(light), axis=0)])
        moved = sizes[given][:, None] - smaller  # [given, taken + light, k]
        after_heavy, after_light = sums[:, heavy] - moved, sums[:, other].T + moved
        fits = (after_heavy <= capacity).all(axis=2) & (after_light <= capacity).all(axis=2)
        fuller = np.where(fits, np.maximum(after_heavy[..., 0], after_light[..., 0]), np.inf)
        best, partner = np.unravel_index(int(fuller.argmin()), fuller.shape)
        if fuller[best, partner] >= sums[0, heavy]:
            return
        row_of[given[best]] = other[partner]
        if partner < len(taken):
            row_of[taken[partner]] = heavy
        sums[:, heavy] -= moved[best, partner]
        sums[:, other[partner]] += moved[best, partner]
