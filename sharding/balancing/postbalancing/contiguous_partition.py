"""The cut of sorted items into at most d contiguous segments whose costliest segment costs least."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

SegmentCosts = Callable[[Int[np.ndarray, " s"], Int[np.ndarray, " s"]], Float[np.ndarray, " s"]]
"""(first items of segments, first items after them) -> what the segments cost a replica each."""
Cut = Callable[[float], list[int]]
"""bound -> first items of the segments, each as long as costs no more than the bound."""

_ESTIMATES = 4
"""Bounds that are estimated, before bisection, from how many segments the bound before needed."""


def partition_minimizing_maximum(
    items: int, replicas: int, segment_costs: SegmentCosts, cut: Cut
) -> Int[np.ndarray, " s"]:
    """First items of the segments in the cut with the smallest largest cost.

    Items are taken largest first, each segment as long as the bound permits. The bound is found by bisection. After a
    probe that fits, it becomes the cost of the costliest segment; after one that does not, the least bound at which
    some segment would have been longer. So the optimum is found exactly, for whole costs and for any others, and the
    best probe is returned, not the last (the printed Algorithm 2 returns the last, and its bounds use the shortest
    length where the longest is meant). The first probe is the mean cost of items alone, near which the optimum of many
    items is; the next ones are as much higher or lower as segments were too many or too few.

    Args:
        items: Number of items, ordered from the largest.
        replicas: The most segments.
        segment_costs: Grow with a segment's end, and fall as the segment moves on to smaller items.
        cut: Cuts the items under a bound of at least the cost of the first.
    """
    if not items:
        return np.zeros(0, np.int64)

    def largest_cost(begins: Int[np.ndarray, " s"]) -> float:
        return float(segment_costs(begins, np.append(begins[1:], items)).max())

    best = np.arange(0, items, -(-items // replicas))
    high = largest_cost(best)
    starts = np.arange(items)
    alone = segment_costs(starts, starts + 1)
    low = estimate = max(float(alone[0]), float(alone.sum()) / replicas)
    estimates = _ESTIMATES
    while low < high:
        bound = estimate if estimates and low <= estimate < high else (low + high) / 2
        begins = np.array(cut(bound))
        estimate, estimates = bound * len(begins) / replicas, max(estimates - 1, 0)
        if len(begins) <= replicas:
            best, high = begins, largest_cost(begins)
        else:
            low = float(segment_costs(begins[:-1], begins[1:] + 1).min())
    return best
