"""Next-fit: samples in order go into one open group, which closes when the next sample exceeds its capacity.

Where a group ends depends on where it begins, and so on that of all before it; a loop over samples is slow in Python.
Therefore the group that would begin with a sample is measured for all samples at once, each longer by one sample a
step, and then only one small step a group is left: from its beginning to the next. The result is that of a single pass
over the samples, also where sums are rounded.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

_BLOCK = 2**15  # samples measured together: what is added up stays in the cache
_LONGEST = 64  # average members of a group from which on measuring all groups is slower than one after the other
_REACH = 8  # times the average; the few groups that are longer are measured when one begins there
_PROBED = 1024  # samples from which that average is estimated; it decides only how fast this is
_EXACT = 2**23  # up to twice of it, every whole number has a float32


class NextFitGroups(NamedTuple):
    """Neighbours in an order, in groups.

    Attributes:
        lengths: int64[g], members of each group.
        sums: Float[k, g], units of each group.
    """

    lengths: Int[np.ndarray, " g"]
    sums: Float[np.ndarray, "k g"]


def as_columns(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
    """Sizes by modality, each in one piece of memory, and in single precision where sums remain exact."""
    columns = np.ascontiguousarray(sizes.T, np.float64)
    exact = all((units <= _EXACT).all() and (units == np.floor(units)).all() for units in (capacity, columns))
    return columns.astype(np.float32) if exact else columns


def next_fit(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"]
) -> NextFitGroups:
    """Groups neighbours in an order; the last group too is closed.

    Args:
        columns: Units of every sample, by modality (`as_columns`), none negative.
        capacity: Units that a group holds at most; a sample above it is a group of its own.
        order: Samples to group.
    """
    sizes = np.empty((len(columns), len(order)), columns.dtype)
    for column, units in zip(columns, sizes, strict=True):
        np.take(column, order, out=units, mode="clip")  # other modes copy
    reach = _reach(sizes, capacity)
    count = len(order)
    steps = b"".join(_measure(sizes, capacity, start, reach).tobytes() for start in range(0, count, _BLOCK))
    starts, place = [], 0
    while place < count:
        starts.append(place)
        place += steps[place] or _measure_one(sizes, capacity, place)
    begins = np.array(starts, np.int64)
    sums = [np.add.reduceat(units, begins) if count else units for units in sizes]
    return NextFitGroups(np.diff(begins, append=count) if count else begins, np.stack(sums))


def _reach(sizes: Float[np.ndarray, "k m"], capacity: Float[np.ndarray, " k"]) -> int:
    """The longest group to measure everywhere, a byte; 0 if groups are so long that it does not pay."""
    probed = sizes[:, :: sizes.shape[1] // _PROBED + 1]
    share = float((probed.mean(axis=1) / capacity).max()) if probed.size else 0.0
    return min(int(_REACH / share) + 1, 255) if share * _LONGEST > 1 else 0


def _measure(
    sizes: Float[np.ndarray, "k m"], capacity: Float[np.ndarray, " k"], start: int, reach: int
) -> UInt8[np.ndarray, " block"]:
    """Members of the groups that would begin with each sample of a block; 0 for those of `reach` and more."""
    count = sizes.shape[1]
    width = min(_BLOCK, count - start)
    lengths = np.ones(width, np.uint8)
    if reach < 1:
        return np.zeros(width, np.uint8)
    totals = sizes[:, start : start + width].copy()
    most = capacity[:, None].astype(sizes.dtype)
    growing = np.arange(width)
    length = 1
    # While most groups grow, all are added to: nothing needs to be picked.
    while 4 * len(growing) > width and length < reach:
        inside = min(width, count - start - length)
        totals[:, :inside] += sizes[:, start + length : start + length + inside]
        fits = (totals[:, :inside] <= most).all(axis=0)
        lengths[:inside] += fits
        growing = np.flatnonzero(fits)
        length += 1
    totals = totals[:, growing]
    while len(growing) and length < reach:
        inside = np.searchsorted(growing, count - start - length)
        growing, totals = growing[:inside], totals[:, :inside] + sizes[:, start + length + growing[:inside]]
        fits = (totals <= most).all(axis=0)
        growing, totals = growing[fits], totals[:, fits]
        lengths[growing] += 1
        length += 1
    lengths[growing] = 0
    return lengths


def _measure_one(sizes: Float[np.ndarray, "k m"], capacity: Float[np.ndarray, " k"], start: int) -> int:
    """Members of the group that begins with a sample."""
    width = 2 * _LONGEST
    while True:
        exceeds = (sizes[:, start : start + width].cumsum(axis=1) > capacity[:, None]).any(axis=0)
        if exceeds.any():
            return max(int(exceeds.argmax()), 1)
        if start + width >= sizes.shape[1]:
            return len(exceeds)
        width *= 2
