"""Start assignments for balancing: largest first, and row by row where every instance takes equally many."""

import numpy as np
from jaxtyping import Int


def largest_first(
    descending: Int[np.ndarray, " n"], sums: Int[np.ndarray, " d"]
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " d"]]:
    """Every item, largest first, to the instance whose sum is then least: the LPT rule (Graham 1969; Algorithm 1).

    The result is that of the item-by-item rule, found many items at a time: after sorting the instances by sum, the
    next items go one each to the first, second, ... of them, for as long as none that has already taken one is lighter
    than the next in line. That is nearly all of them nearly always, so there are little more than `n / d` rounds.

    Args:
        descending: Lengths, largest first.
        sums: What every instance holds before.

    Returns:
        The instance of every item, and the sums after. Among equally light instances any may come first.
    """
    sums = sums.copy()
    instance = np.empty(len(descending), np.int64)
    done = 0
    while done < len(descending):
        order = np.argsort(sums)[: len(descending) - done]
        before = sums[order]
        after = before + descending[done : done + len(order)]
        overtaken = before[1:] > np.minimum.accumulate(after)[:-1]
        taken = int(overtaken.argmax()) + 1 if overtaken.any() else len(order)
        chosen = order[:taken]
        sums[chosen] = after[:taken]
        instance[done : done + taken] = chosen
        done += taken
    return instance, sums


def deal_equal_counts(descending: Int[np.ndarray, " n"], instances: int) -> Int[np.ndarray, " n"]:
    """Rows of `instances` items, largest first, each handed out one item an instance, the largest to the lightest.

    This is multi-way differencing with equal counts (Michiels et al. 2003, BLDM): counts differ by at most one.
    """
    sums = np.zeros(instances, np.int64)
    instance = np.empty(len(descending), np.int64)
    for begin in range(0, len(descending), instances):
        row = descending[begin : begin + instances]
        if len(row) < instances:  # the last row's places without an item go to the heaviest
            row = np.concatenate((row, np.zeros(instances - len(row), row.dtype)))
        order = np.argsort(sums)
        sums[order] += row
        instance[begin : begin + instances] = order[: len(descending) - begin]
    return instance
