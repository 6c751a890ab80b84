"""Rows for data-parallel instances: equally many for each, with sums as equal as can easily be.

DistTrain's Algorithm 2 (arXiv 2408.04275, section 6.1) as it is meant, and a refinement.
"""

import numpy as np
from jaxtyping import Float, Int

EXCHANGES = 1000
ENOUGH = 1e-4  # of the mean


def balance(sizes: Float[np.ndarray, " n"], groups: int) -> Int[np.ndarray, "g each"]:
    """Groups of equally many rows whose sums are nearly equal; each lists its rows largest first.

    The paper sorts in ascending order and leaves the sizes of the groups open; its bound of 4/3 belongs to descending
    order (Graham 1969), and every instance needs n / groups rows. So here, again and again, the largest rows left are
    dealt to all groups, the largest of them to the lightest group. Then rows of the heaviest group change places with
    lighter ones of others for as long as that makes it lighter, and it is not within `ENOUGH` of the mean.

    Raises ValueError if the rows cannot be divided.
    """
    if groups < 1 or len(sizes) % groups:
        raise ValueError(f"{len(sizes)} rows cannot be divided into {groups} groups of equal size")
    each = len(sizes) // groups
    dealt = np.argsort(-sizes, kind="stable").reshape(each, groups)
    found = np.empty((groups, each), int)
    sums = np.zeros(groups)
    for turn, rows in enumerate(dealt):
        lightest = np.argsort(sums, kind="stable")
        found[lightest, turn] = rows
        sums[lightest] += sizes[rows]
    for _ in range(EXCHANGES):
        if not _exchange(found, sums, sizes):
            break
    order = np.argsort(-sizes[found], axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def _exchange(groups: Int[np.ndarray, "g each"], sums: Float[np.ndarray, " g"], sizes: Float[np.ndarray, " n"]) -> bool:
    """Exchanges two rows, in place, so that the heaviest group gets lighter; False if none does, or need be."""
    heaviest = int(sums.argmax())
    if sums[heaviest] <= sums.mean() * (1 + ENOUGH):
        return False
    for other in np.argsort(sums, kind="stable").tolist():
        gap = sums[heaviest] - sums[other]
        moved = sizes[groups[heaviest]][:, None] - sizes[groups[other]]
        far = np.abs(moved - gap / 2)
        mine, place = np.unravel_index(far.argmin(), far.shape)
        if far[mine, place] < gap / 2 * (1 - 1e-9):
            shift = moved[mine, place]
            here, there = groups[heaviest, mine], groups[other, place]
            groups[heaviest, mine], groups[other, place] = there, here
            sums[heaviest] -= shift
            sums[other] += shift
            return True
    return False
