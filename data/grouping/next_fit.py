"""Next-fit: samples in order go into one open group, which closes when the next sample exceeds its capacity.

Each step depends on the one before, and a loop over samples is slow in Python. Therefore the order is cut into runs,
and all runs advance together, one sample a step, each as if a group began with it. Then every run is repeated from
what its predecessor really left open, but only until it holds the same as before: from there on nothing changes. Most
runs get there after some groups. The result is that of a single pass, to the last bit.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

_GROUPS_A_RUN = 16  # on average
_BLOCK = 64  # steps after which runs that hold the same as before are left alone
_UNSETTLED = 0.8  # share of the runs that another repetition may leave for the next, at most
_PROBED = 1024  # samples from which the size of a group is estimated; it decides only how fast this is


class Filled(NamedTuple):
    """Neighbours in an order, in groups.

    Attributes:
        lengths: int64[g], members of each group.
        sums: float64[k, g], units of each group.
    """

    lengths: Int[np.ndarray, " g"]
    sums: Float[np.ndarray, "k g"]


def next_fit(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"]
) -> Filled:
    """Groups neighbours in an order; the last group too is closed.

    Args:
        columns: Units of every sample, by modality.
        capacity: Units that a group holds at most; a sample above it is a group of its own.
        order: Samples to group.
    """
    runs = _run_count(columns, capacity, order)
    if runs == 1:
        return _fill_one_by_one(columns, capacity, order)
    return _fill_runs(columns, capacity, order, runs) or _fill_from_everywhere(columns, capacity, order)


def _run_count(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"]
) -> int:
    """Few enough that most runs get to hold the same, many enough that steps are few; one if groups are few too."""
    probed = columns[:, order[:: len(order) // _PROBED + 1]]
    share = (probed.mean(axis=1) / capacity).max(initial=0.0) if probed.size else 0.0
    if not share:
        return 1
    steps = max(math.sqrt(len(order)) / 2, _GROUPS_A_RUN / share)
    return math.ceil(len(order) / steps) if share * len(order) > 2 * steps else 1


class _Runs(NamedTuple):
    """Runs of an order side by side, one sample of each in a row.

    Attributes:
        sizes: Units of each sample.
        totals: Units of its group up to and with it.
        begins: Whether it begins a group.
    """

    sizes: Float[np.ndarray, "k rows runs"]
    totals: Float[np.ndarray, "k rows runs"]
    begins: Bool[np.ndarray, "rows runs"]


def _fill_runs(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"], count: int
) -> Filled | None:
    """The groups, found in so many runs, or None if runs take too long to hold the same."""
    rows = math.ceil(len(order) / count)
    padding = np.repeat(order[-1:], rows * count - len(order))  # behind all others, so that it changes nothing
    by_row = np.ascontiguousarray(np.concatenate([order, padding]).reshape(count, rows).T)
    shape = (len(columns), rows, count)
    runs = _Runs(np.empty(shape), np.empty(shape), np.empty((rows, count), bool))
    for column, sizes in zip(columns, runs.sizes, strict=True):
        np.take(column, by_row, out=sizes, mode="clip")  # other modes copy
    _advance(runs, np.zeros((len(columns), count)), capacity)
    runs.begins[0, 0] = True
    if not _continue(runs, capacity):
        return None
    starts = np.flatnonzero(runs.begins.T)
    starts = starts[: np.searchsorted(starts, len(order))]
    ends = np.append(starts[1:], len(order))
    last = (ends - 1) % rows * count + (ends - 1) // rows
    return Filled(ends - starts, np.stack([total.ravel()[last] for total in runs.totals]))


def _advance(runs: _Runs, held: Float[np.ndarray, "k runs"], capacity: Float[np.ndarray, " k"]) -> None:
    """Fills in totals and begins of all rows, from what each run's open group holds before them."""
    exceeds = np.empty(runs.begins.shape[1], bool)
    units = list(zip(runs.sizes, runs.totals, held, capacity.tolist(), strict=True))
    for row, begins in enumerate(runs.begins):
        begins[:] = False
        for sizes, totals, before, most in units:
            total = totals[row]
            np.add(totals[row - 1] if row else before, sizes[row], out=total)
            np.greater(total, most, out=exceeds)
            np.logical_or(begins, exceeds, out=begins)
        for sizes, totals, _, _ in units:
            np.copyto(totals[row], sizes[row], where=begins)


def _continue(runs: _Runs, capacity: Float[np.ndarray, " k"]) -> bool:
    """Lets each run continue what the one before it leaves open; False if too few get to hold the same as before."""
    rows, count = runs.begins.shape
    moved = np.arange(count - 1)  # runs that leave something else open than their successors began with
    most = float(count)
    while len(moved):
        if len(moved) > most:
            return False
        most *= _UNSETTLED
        repeated, held = moved + 1, runs.totals[:, -1, moved]
        for start in range(0, rows, _BLOCK):
            block = np.s_[start : start + _BLOCK, repeated]
            sizes = runs.sizes[:, *block]
            again = _Runs(sizes, np.empty_like(sizes), np.empty(sizes.shape[1:], bool))
            _advance(again, held, capacity)
            differs = (again.totals[:, -1] != runs.totals[:, *block][:, -1]).any(axis=0)
            runs.totals[:, *block], runs.begins[block] = again.totals, again.begins
            repeated, held = repeated[differs], again.totals[:, -1, differs]
            if not len(repeated):
                break
        moved = repeated[repeated < count - 1]
    return True


def _fill_from_everywhere(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"]
) -> Filled:
    """The groups, chosen from those that would begin with each sample.

    For sizes with which runs never get to hold the same, such as ones that are all alike.
    """
    sizes = columns[:, order]
    totals, lengths = sizes.copy(), np.ones(len(order), np.int64)
    growing, length = np.arange(len(order)), 0
    while len(growing):
        length += 1
        growing = growing[: np.searchsorted(growing, len(order) - length)]
        more = totals[:, growing] + sizes[:, growing + length]
        fits = (more <= capacity[:, None]).all(axis=0)
        growing = growing[fits]
        totals[:, growing] = more[:, fits]
        lengths[growing] += 1
    starts, following, place = [], (np.arange(len(order)) + lengths).tolist(), 0
    while place < len(order):
        starts.append(place)
        place = following[place]
    return Filled(lengths[starts], totals[:, starts])


def _fill_one_by_one(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"]
) -> Filled:
    """The groups, found one after the other: for few groups."""
    sizes = columns[:, order]
    most = capacity[:, None]
    lengths, sums = [], []
    start, width = 0, 8
    while start < len(order):
        totals = sizes[:, start : start + width].cumsum(axis=1)
        over = (totals > most).any(axis=0)
        length = max(int(over.argmax()), 1) if over.any() else len(over)
        if length == width and start + width < len(order):
            width *= 2
            continue
        lengths.append(length)
        sums.append(totals[:, length - 1])
        start += length
        width = 2 * length
    found = np.array(sums, float).reshape(len(lengths), len(columns))
    return Filled(np.array(lengths, np.int64), np.ascontiguousarray(found.T))
