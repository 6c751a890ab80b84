"""Division of rows among data-parallel replicas, or microbatches: equally many for each, with nearly equal work.

This is DistTrain's intra-microbatch reordering (arXiv 2408.04275, section 6.1, Algorithm 2) as it is meant, refined.
The paper divides rows among replicas, each of which computes its own rows. Where a plan deals the items of a microbatch
over the rows of a phase, replicas share the work of a microbatch evenly whichever rows it has, and what differs is the
work of microbatches; so rows are divided among these.
"""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing import unpadded

_TOTAL = 1 << 22  # what the work of all rows is scaled to, since sums are balanced in whole numbers


def balanced_groups(sizes: Float[np.ndarray, " n"], groups: int) -> Int[np.ndarray, "g each"]:
    """Groups of equally many rows whose sums are nearly equal; each lists its rows in ascending order of work.

    The paper sorts in ascending order and leaves the sizes of the groups open; its bound of 4/3 belongs to descending
    order (Graham 1969), and every replica needs n / groups rows. So the largest rows are dealt first, one to every
    group, and then heavy and light groups swap rows (`balance_unpadded`).

    Args:
        sizes: Work of each row, not negative.
        groups: Number of groups.

    Raises:
        ValueError: The rows cannot be divided by the groups.
    """
    if groups < 1 or len(sizes) % groups:
        raise ValueError(f"{len(sizes)} rows cannot be divided into {groups} groups of equal size")
    total = float(sizes.sum())
    whole = np.rint(sizes * (_TOTAL / total if total else 0.0)).astype(np.int64)
    group = unpadded.balance_unpadded(whole, groups, equal=True)
    return np.lexsort((sizes, group)).reshape(groups, -1)


def balanced_replicas(work: Float[np.ndarray, " n"], microbatches: int, replicas: int) -> Int[np.ndarray, " n"]:
    """The order of rows that gives every replica equal work over a step.

    Args:
        work: Work of each row, not negative.
        microbatches: Number of microbatches.
        replicas: Number of replicas, which divides the rows of a microbatch.
    """
    groups = balanced_groups(work, replicas)
    return groups.reshape(replicas, microbatches, -1).transpose(1, 0, 2).ravel()


def balanced_microbatches(work: Float[np.ndarray, " n"], microbatches: int) -> Int[np.ndarray, " n"]:
    """The order of rows that gives every microbatch equal work.

    The rows of a microbatch stay in the order given, and microbatches in the order of their first rows.

    Args:
        work: Work of each row, not negative.
        microbatches: Number of microbatches.
    """
    groups = np.sort(balanced_groups(work, microbatches), axis=1)
    return groups[np.argsort(groups[:, 0])].ravel()
