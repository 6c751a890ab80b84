"""Post-balancing without padding: a replica costs the sum of its lengths (OrchMLLM 5.1, Algorithm 1).

The grouping `post_balanced` of the data pipeline deals samples to rows by `balance_unpadded`.
"""

import numpy as np
from jaxtyping import Int

from sharding.balancing.postbalancing.array_sorting import stable_order
from sharding.balancing.postbalancing.greedy import deal_equal_counts, largest_first
from sharding.balancing.postbalancing.pairwise_swaps import ReplicaItems, level_by_swaps

MAX_TOTAL = 1 << 52
"""The most that the total length times the replicas may be, so that sums are exact and search keys fit in 64 bits."""


def balance_unpadded(lengths: Int[np.ndarray, " n"], replicas: int, equal: bool = False) -> Int[np.ndarray, " n"]:
    """The replica of every item, with a largest sum of a replica that is close to the least possible.

    The paper's rule is longest first, which is within 4/3 - 1/(3d) of the optimum. Here swaps between heavy and light
    replicas follow (`level_by_swaps`), which only lower the largest sum; with dozens of items for each replica it ends
    at the optimum, the mean rounded up. The same lengths give the same result everywhere.

    Args:
        lengths: Lengths of all replicas' items, in tokens or any other whole unit that adds up. Items of length 0 go
            where the fewest items are.
        replicas: Number of replicas to divide them among.
        equal: Whether every replica gets equally many items; where they cannot be divided, counts differ by at most
            one.

    Raises:
        ValueError: There is no replica, a length is below 0, or lengths are so large that sums are not exact.
    """
    check_lengths(lengths, replicas)
    order = stable_order(lengths)
    ascending = lengths[order].astype(np.int64)
    replica_of = np.empty(len(lengths), np.int64)
    replica_of[order] = (_balance_equal_counts if equal else _balance_free_counts)(ascending, replicas)
    return replica_of


def check_lengths(lengths: Int[np.ndarray, " n"], replicas: int) -> None:
    """Raises ValueError for lengths that cannot be balanced."""
    if replicas < 1:
        raise ValueError(f"items cannot be divided among {replicas} replicas; give at least 1")
    if len(lengths) and lengths.min() < 0:
        raise ValueError(f"a length is {lengths.min()}, below 0")
    total = float(lengths.sum(dtype=np.float64))
    if total > MAX_TOTAL / replicas:
        raise ValueError(f"lengths add up to {total:.3g}, above {MAX_TOTAL / replicas:.3g} for {replicas} replicas")


def _balance_equal_counts(ascending: Int[np.ndarray, " n"], replicas: int) -> Int[np.ndarray, " n"]:
    replica_of = deal_equal_counts(ascending[::-1], replicas)[::-1]
    return _level(ascending, replica_of, replicas, equal=True)


def _balance_free_counts(ascending: Int[np.ndarray, " n"], replicas: int) -> Int[np.ndarray, " n"]:
    zeros = int(np.searchsorted(ascending, 1))
    replica_of, _ = largest_first(ascending[zeros:][::-1], np.zeros(replicas, np.int64))
    replica_of = _level(ascending[zeros:], replica_of[::-1], replicas, equal=False)
    counts = np.bincount(replica_of, minlength=replicas)
    replica_of_zeros, _ = largest_first(np.ones(zeros, np.int64), counts)
    return np.concatenate((replica_of_zeros, replica_of))


def _level(
    ascending: Int[np.ndarray, " n"], replica_of: Int[np.ndarray, " n"], replicas: int, equal: bool
) -> Int[np.ndarray, " n"]:
    """Returns the replica of every item after swaps have levelled the sums."""
    if len(ascending) <= replicas or replicas == 1:
        return replica_of
    replica_items = ReplicaItems.from_assignment(ascending, replica_of, replicas, equal)
    level_by_swaps(replica_items)
    return replica_items.updated_assignment(replica_of)
