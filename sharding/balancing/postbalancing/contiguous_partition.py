"""The cut of sorted items into at most d contiguous segments whose costliest segment costs least."""

import itertools
from collections.abc import Callable

SegmentCost = Callable[[int, int], float]
"""(first item of a segment, first item after it) -> what the segment costs a replica."""
LongestSegment = Callable[[int, float], int]
"""(first item of a segment, a bound) -> where the longest segment from there ends that costs no more than the bound."""


def partition_minimizing_maximum(
    items: int, replicas: int, segment_cost: SegmentCost, longest_segment: LongestSegment
) -> list[int]:
    """First items of the segments in the cut with the smallest largest cost.

    Items are taken largest first, each segment as long as the bound permits. The bound is found by bisection. After a
    probe that fits, it becomes the cost of the costliest segment; after one that does not, the least bound at which
    some segment would have been longer. So the optimum is found exactly, for whole costs and for any others, and the
    best probe is returned, not the last (the printed Algorithm 2 returns the last, and its bounds use the shortest
    length where the longest is meant).

    Args:
        items: Number of items, ordered from the largest.
        replicas: The most segments.
        segment_cost: Grows with the segment's end, and falls as the segment moves on to smaller items.
        longest_segment: How far a segment can reach.
    """
    if not items:
        return []
    even = list(range(0, items, -(-items // replicas)))
    best, high = even, _largest_cost(even, items, segment_cost)
    low = segment_cost(0, 1)
    while low < high:
        middle = (low + high) / 2
        begins = _cut(items, middle, longest_segment, replicas)
        if len(begins) <= replicas:
            best, high = begins, _largest_cost(begins, items, segment_cost)
        else:
            low = min(segment_cost(begin, end + 1) for begin, end in itertools.pairwise(begins))
    return best


def _cut(items: int, bound: float, longest_segment: LongestSegment, replicas: int) -> list[int]:
    """First items of the segments under a bound; `replicas + 1` of them where more segments would be needed."""
    begins, begin = [], 0
    while begin < items and len(begins) <= replicas:
        begins.append(begin)
        begin = longest_segment(begin, bound)
    return begins


def _largest_cost(begins: list[int], items: int, segment_cost: SegmentCost) -> float:
    return max(segment_cost(begin, end) for begin, end in itertools.pairwise([*begins, items]))
