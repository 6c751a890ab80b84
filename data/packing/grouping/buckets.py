"""A few sizes to which lengths are rounded up: those that waste least, found exactly."""

import dataclasses

import numpy as np
from jaxtyping import Int

from data.errors import DataError

_FINEST = 512  # different sizes considered


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sizes to which lengths are padded.

    Attributes:
        sizes: Ascending; the last holds the longest.
        shares: Share of the lengths that each takes.
        padding: Share of padding in all.
    """

    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    padding: float


def choose_buckets(lengths: Int[np.ndarray, " n"], most: int, multiple: int = 1) -> tuple[Buckets, ...]:
    """For 1, 2... up to `most` buckets the sizes of least padding; fewer where more buckets waste no less.

    Each length is padded to the smallest size that holds it. The optimum over all sizes that are multiples, by dynamic
    programming; of many different lengths, multiples so much coarser are taken that a few hundred sizes remain.

    Args:
        lengths: Above 0.
        most: Buckets at most.
        multiple: Sizes are whole multiples of it.

    Raises:
        DataError: No length, one of 0, or no bucket.
    """
    if not len(lengths) or lengths.min() < 1 or most < 1 or multiple < 1:
        raise DataError(f"{most} buckets of multiples of {multiple} for {len(lengths)} lengths; all must be at least 1")
    unit = multiple * -(-int(lengths.max()) // (multiple * _FINEST))
    sizes, counts = np.unique(-(-lengths // unit) * unit, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # lengths that the first sizes hold
    # padded[i, j]: lengths above the first i sizes and within size j, each padded to size j.
    padded = sizes * (below[None, 1:] - below[:-1, None]).astype(float)
    padded[np.tril_indices(len(sizes), -1)] = np.inf
    best, chosen, found = padded[0], [], []
    for count in range(1, min(most, len(sizes)) + 1):
        if count > 1:
            totals = best[:-1, None] + padded[1:]  # the last bucket begins above size i
            chosen.append(totals.argmin(axis=0))
            best = totals.min(axis=0)
        ends = [len(sizes) - 1]
        for before in reversed(chosen):
            ends.append(int(before[ends[-1]]))
        places = np.array(ends[::-1])
        held = np.diff(below[places + 1], prepend=0) / len(lengths)
        padding = 1 - float(lengths.sum()) / float(best[-1])
        found.append(Buckets(tuple(sizes[places].tolist()), tuple(held.tolist()), padding))
    return tuple(found)
