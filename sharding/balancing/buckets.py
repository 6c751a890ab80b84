"""Buckets: the few sizes to which lengths are padded with the least padding, found exactly; reports suggest them."""

import dataclasses

import numpy as np
from jaxtyping import Int

from configs.common.errors import UserError

_MAX_SIZES = 512  # different sizes considered


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sizes to which lengths are padded.

    Attributes:
        sizes: Ascending; the last one holds the longest length.
        shares: Share of the lengths that are padded to each size.
        padding: Share of padding in all padded lengths.
    """

    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    padding: float


def choose_buckets(lengths: Int[np.ndarray, " n"], max_buckets: int, multiple: int = 1) -> tuple[Buckets, ...]:
    """The sizes of least padding for 1, 2, ... up to `max_buckets` buckets; fewer where the lengths have fewer sizes.

    Each length is padded to the smallest size that holds it. The result is the optimum over all sizes that are
    multiples, by dynamic programming; for many different lengths, coarser multiples leave a few hundred sizes.

    Args:
        lengths: Positive lengths.
        max_buckets: Largest number of buckets.
        multiple: Sizes are whole multiples of this.

    Raises:
        UserError: No lengths, a length of 0, or no buckets.
    """
    if not len(lengths) or lengths.min() < 1 or max_buckets < 1 or multiple < 1:
        raise UserError(
            f"{max_buckets} buckets of multiples of {multiple} for {len(lengths)} lengths; all must be at least 1"
        )
    unit = multiple * -(-int(lengths.max()) // (multiple * _MAX_SIZES))
    sizes, counts = np.unique(-(-lengths // unit) * unit, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # number of lengths within the first sizes
    # padded[i, j]: total of the lengths above the first i sizes and within size j, padded to size j.
    padded = sizes * (below[None, 1:] - below[:-1, None]).astype(float)
    padded[np.tril_indices(len(sizes), -1)] = np.inf
    best, choices, buckets = padded[0], [], []
    for count in range(1, min(max_buckets, len(sizes)) + 1):
        if count > 1:
            totals = best[:-1, None] + padded[1:]  # the last bucket begins above the first i sizes
            choices.append(totals.argmin(axis=0))
            best = totals.min(axis=0)
        ends = [len(sizes) - 1]
        for previous in reversed(choices):
            ends.append(int(previous[ends[-1]]))
        chosen = np.array(ends[::-1])
        shares = np.diff(below[chosen + 1], prepend=0) / len(lengths)
        padding = 1 - float(lengths.sum()) / float(best[-1])
        buckets.append(Buckets(tuple(sizes[chosen].tolist()), tuple(shares.tolist()), padding))
    return tuple(buckets)
