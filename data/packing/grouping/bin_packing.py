"""Bin packing: first-fit of the largest samples first, and next-fit over samples in a given order.

Next-fit puts samples in order into one open group, which closes when the next sample exceeds its capacity. Where a
group ends depends on where it begins, and so on all groups before it, and a Python loop over samples is slow.
Therefore the group that would begin at a sample is measured for all samples at once, and only a loop over groups
remains, from the beginning of one to the next. The result equals a single pass over the samples, also where sums are
rounded.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from data.packing.grouping.groups import Groups

_BLOCK = 2**15  # samples measured together, so that their sums stay in the cache
_LONGEST = 64  # average members of a group above which measuring all groups is slower than one after the other
_REACH = 8  # longest group measured everywhere, in averages; longer ones are measured where one begins
_PROBED = 1024  # samples from which that average is estimated; it affects the speed only
_EXACT = 2**23  # whole numbers up to twice this are exact in float32


class NextFitGroups(NamedTuple):
    """Groups of consecutive samples.

    Attributes:
        lengths: int64[g], number of members of each group.
        sums: float[k, g], units of each group.
    """

    lengths: Int[np.ndarray, " g"]
    sums: Float[np.ndarray, "k g"]


def as_columns(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
    """Sizes by modality, each contiguous, in single precision where sums remain exact."""
    columns = np.ascontiguousarray(sizes.T, np.float64)
    exact = all((units <= _EXACT).all() and (units == np.floor(units)).all() for units in (capacity, columns))
    return columns.astype(np.float32) if exact else columns


def next_fit(
    columns: Float[np.ndarray, "k n"], capacity: Float[np.ndarray, " k"], order: Int[np.ndarray, " m"]
) -> NextFitGroups:
    """Groups consecutive samples of an order; the last group is closed too.

    Args:
        columns: Units of every sample, by modality (`as_columns`), not negative.
        capacity: Capacity of a group; a sample above it is a group of its own.
        order: Samples to group, in order.
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
    """The longest group to measure everywhere, at most 255; 0 if groups are too long for it."""
    probed = sizes[:, :: sizes.shape[1] // _PROBED + 1]
    share = float((probed.mean(axis=1) / capacity).max()) if probed.size else 0.0
    return min(int(_REACH / share) + 1, 255) if share * _LONGEST > 1 else 0


def _measure(
    sizes: Float[np.ndarray, "k m"], capacity: Float[np.ndarray, " k"], start: int, reach: int
) -> UInt8[np.ndarray, " block"]:
    """Members of the groups that would begin at each sample of a block; 0 for groups of `reach` members or more."""
    count = sizes.shape[1]
    width = min(_BLOCK, count - start)
    lengths = np.ones(width, np.uint8)
    if reach < 1:
        return np.zeros(width, np.uint8)
    totals = sizes[:, start : start + width].copy()
    most = capacity[:, None].astype(sizes.dtype)
    growing = np.arange(width)
    length = 1
    # While most groups grow, all sums are extended, which needs no indexing.
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
    """Members of the group that begins at a sample."""
    width = 2 * _LONGEST
    while True:
        exceeds = (sizes[:, start : start + width].cumsum(axis=1) > capacity[:, None]).any(axis=0)
        if exceeds.any():
            return max(int(exceeds.argmax()), 1)
        if start + width >= sizes.shape[1]:
            return sizes.shape[1] - start
        width *= 2


def first_fit_decreasing(
    sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], samples: Int[np.ndarray, " m"]
) -> Groups:
    """First-fit decreasing vector packing: a sample joins the first group with room for it in every modality.

    Samples are taken in descending order of the largest share of the capacity that they take in any modality; all
    groups stay open. On easy-VQA's sizes the result has 0.5% more groups than the sums of units require, where random
    order has 8% more. The time is proportional to samples times groups: 10 ms for a thousand samples.

    Args:
        sizes: Units of every sample, by modality.
        capacity: Capacity of a group; no sample of `samples` may exceed it.
        samples: Samples to pack; equal ones keep their order.
    """
    shares = (sizes[samples] / capacity).max(axis=1, initial=0.0)
    room = np.empty((len(samples), len(capacity)))
    members: list[list[int]] = []
    for sample in samples[np.argsort(-shares, kind="stable")].tolist():
        fits = (room[: len(members)] >= sizes[sample]).all(axis=1)
        place = int(fits.argmax()) if fits.any() else len(members)
        if place == len(members):
            members.append([])
            room[place] = capacity
        members[place].append(sample)
        room[place] -= sizes[sample]
    return Groups.from_lists(members)
