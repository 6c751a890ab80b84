"""Rows for data-parallel instances: equally many for each, with sums as equal as can easily be.

DistTrain's Algorithm 2 (arXiv 2408.04275, section 6.1) as it is meant, and a refinement.
"""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing import unpadded

_UNITS = 1 << 22  # of all rows together: sums are balanced in whole units


def balanced_groups(sizes: Float[np.ndarray, " n"], groups: int) -> Int[np.ndarray, "g each"]:
    """Groups of equally many rows whose sums are nearly equal; each lists its rows smallest first.

    The paper sorts in ascending order and leaves the sizes of the groups open; its bound of 4/3 belongs to descending
    order (Graham 1969), and every instance needs n / groups rows. So the largest rows are dealt first, one to every
    group, and then rows change places between heavy and light groups (`unpadded.balance`).

    Args:
        sizes: Work of each row, not negative.
        groups: How many.

    Raises:
        ValueError: The rows cannot be divided by the groups.
    """
    if groups < 1 or len(sizes) % groups:
        raise ValueError(f"{len(sizes)} rows cannot be divided into {groups} groups of equal size")
    total = float(sizes.sum())
    whole = np.rint(sizes * (_UNITS / total if total else 0.0)).astype(np.int64)
    group = unpadded.balance_unpadded(whole, groups, equal=True)
    return np.lexsort((sizes, group)).reshape(groups, -1)
