"""Initial assignments: longest first (LPT), and round by round where every replica takes equally many items."""

import numpy as np
from jaxtyping import Int


def largest_first(
    descending: Int[np.ndarray, " n"], sums: Int[np.ndarray, " d"]
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " d"]]:
    """Assigns every item, longest first, to the replica with the least sum: the LPT rule (Graham 1969; Algorithm 1).

    The result equals the rule applied item by item, but is computed for many items at a time: with the replicas sorted
    by sum, the next items go one each to the first, second, ... replica, as long as no replica that has just taken one
    is lighter than the next in line. That holds for nearly all of them nearly always, so there are few more than `n /
    d` rounds.

    Args:
        descending: Lengths, longest first.
        sums: The sum of every replica beforehand, of at least 0. No sum times twice the replicas may exceed 63 bits.

    Returns:
        The replica of every item, and the sums afterwards. Ties between replicas are broken arbitrarily.
    """
    replicas, done = len(sums), 0
    replica_bits = replicas.bit_length()
    keys = np.sort((sums << replica_bits) | np.arange(replicas))  # sum and replica in one number
    added = descending.astype(np.int64) << replica_bits
    replica_of = np.empty(len(descending), np.int64)
    while done < len(descending):
        before = keys[: len(descending) - done]
        after = before + added[done : done + len(before)]
        overtaken = before[1:] > np.minimum.accumulate(after)[:-1]
        count = int(overtaken.argmax()) + 1 if overtaken.any() else len(before)
        replica_of[done : done + count] = before[:count]
        keys[:count] = after[:count]
        keys.sort()
        done += count
    replica_of &= (1 << replica_bits) - 1
    sums = np.empty(replicas, np.int64)
    sums[keys & ((1 << replica_bits) - 1)] = keys >> replica_bits
    return replica_of, sums


def deal_equal_counts(descending: Int[np.ndarray, " n"], replicas: int) -> Int[np.ndarray, " n"]:
    """Deals items, longest first, in rounds of one item for each replica, the longest to the lightest replica.

    This is multi-way differencing with equal counts (Michiels et al. 2003, BLDM): counts differ by at most one.
    """
    sums = np.zeros(replicas, np.int64)
    replica_of = np.empty(len(descending), np.int64)
    for begin in range(0, len(descending), replicas):
        lengths = descending[begin : begin + replicas]
        if len(lengths) < replicas:  # in the last round the heaviest replicas get no item
            lengths = np.concatenate((lengths, np.zeros(replicas - len(lengths), lengths.dtype)))
        order = np.argsort(sums)
        sums[order] += lengths
        replica_of[begin : begin + replicas] = order[: len(descending) - begin]
    return replica_of
