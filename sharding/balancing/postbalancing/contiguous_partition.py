"""The least bound under which sorted items, cut into runs, fill no more than d instances."""

import itertools
from collections.abc import Callable

RunCost = Callable[[int, int], float]
"""(the first item of a run, the first behind it) -> what the run costs an instance."""
Fill = Callable[[int, float], int]
"""(the first item of a run, a bound) -> where the longest run from there ends that costs no more than the bound."""


def partition_minimizing_maximum(items: int, instances: int, run_cost: RunCost, fill: Fill) -> list[int]:
    """Where the runs begin in the cut with the smallest largest cost.

    Items are taken largest first, each run as long as the bound permits. The bound is searched by halving; after a
    probe that fits it becomes what the costliest run really costs, and after one that does not, the least bound at
    which any run would have been longer. So it is found exactly, for whole costs and for any others, and what is
    returned is the best probe, not the last (the printed Algorithm 2 returns the last, and its bounds use the
    shortest length where the longest is meant).

    Args:
        items: How many there are, numbered from the largest.
        instances: The most runs.
        run_cost: Grows with the run's end, and falls as the run moves on to smaller items.
        fill: How far a run can reach.
    """
    if not items:
        return []
    even = list(range(0, items, -(-items // instances)))
    best, high = even, max(run_cost(begin, end) for begin, end in segment_bounds(even, items))
    low = run_cost(0, 1)
    while low < high:
        middle = (low + high) / 2
        begins = _cut(items, middle, fill, instances)
        if len(begins) <= instances:
            best, high = begins, max(run_cost(begin, end) for begin, end in segment_bounds(begins, items))
        else:
            low = min(run_cost(begin, end + 1) for begin, end in itertools.pairwise(begins))
    return best


def _cut(items: int, bound: float, fill: Fill, instances: int) -> list[int]:
    """Where the runs begin under a bound; one more than `instances` where they are too few."""
    begins, begin = [], 0
    while begin < items and len(begins) <= instances:
        begins.append(begin)
        begin = fill(begin, bound)
    return begins


def segment_bounds(begins: list[int], items: int) -> list[tuple[int, int]]:
    """Begin and end of every run."""
    return list(itertools.pairwise([*begins, items]))
