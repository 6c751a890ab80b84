"""Post-balancing without padding: the sum of an instance's lengths is what it costs (OrchMLLM 5.1, Algorithm 1)."""

import numpy as np
from jaxtyping import Int

from sharding.balancing.postbalancing import pairwise_swaps as exchange
from sharding.balancing.postbalancing.greedy import deal_equal_counts, largest_first

MOST = 1 << 52
"""The most that total length times instances may be: so sums are exact, and keys of a search fit in 64 bits."""


def unpadded_cost(lengths: Int[np.ndarray, " b"]) -> int:
    """Of an instance with sequences of these lengths."""
    return int(lengths.sum())


def balance_unpadded(lengths: Int[np.ndarray, " n"], instances: int, equal: bool = False) -> Int[np.ndarray, " n"]:
    """The instance of every item, so that the largest sum of an instance is as small as can easily be.

    The paper's rule is largest first, which is within 4/3 - 1/(3d) of the optimum. Here exchanges between heavy and
    light instances follow (`exchange.level`), which only lower the largest sum; with dozens of items an instance it
    ends at the optimum, the mean rounded up. The same lengths give the same answer everywhere.

    Args:
        lengths: Of all instances' items, in tokens (or any other whole unit that adds up). Items of length 0 go where
            the fewest items are.
        instances: Among how many to divide them.
        equal: Every instance gets equally many items; where they cannot be divided, counts differ by at most one.

    Raises:
        ValueError: No instance, a length below 0, or lengths so large that sums are not exact.
    """
    check_lengths(lengths, instances)
    order = _argsort(lengths)
    ascending = lengths[order].astype(np.int64)
    instance = np.empty(len(lengths), np.int64)
    instance[order] = (_equal if equal else _free)(ascending, instances)
    return instance


def check_lengths(lengths: Int[np.ndarray, " n"], instances: int) -> None:
    """Refuses what cannot be balanced."""
    if instances < 1:
        raise ValueError(f"{instances} instances cannot hold anything")
    if len(lengths) and lengths.min() < 0:
        raise ValueError(f"a length is {lengths.min()}, below 0")
    total = float(lengths.sum(dtype=np.float64))
    if total > MOST / instances:
        raise ValueError(f"lengths add up to {total:.3g}, above {MOST / instances:.3g} for {instances} instances")


def _argsort(lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Stable; lengths below 2**16 are sorted by radix."""
    small = len(lengths) and int(lengths.max()) < 1 << 16
    return np.argsort(lengths.astype(np.uint16) if small else lengths, kind="stable")


def _equal(ascending: Int[np.ndarray, " n"], instances: int) -> Int[np.ndarray, " n"]:
    instance = deal_equal_counts(ascending[::-1], instances)[::-1]
    return _level(ascending, instance, instances, equal=True)


def _free(ascending: Int[np.ndarray, " n"], instances: int) -> Int[np.ndarray, " n"]:
    zeros = int(np.searchsorted(ascending, 1))
    instance, _ = largest_first(ascending[zeros:][::-1], np.zeros(instances, np.int64))
    instance = _level(ascending[zeros:], instance[::-1], instances, equal=False)
    counts = np.bincount(instance, minlength=instances)
    fill, _ = largest_first(np.ones(zeros, np.int64), counts)
    return np.concatenate((fill, instance))


def _level(
    ascending: Int[np.ndarray, " n"], instance: Int[np.ndarray, " n"], instances: int, equal: bool
) -> Int[np.ndarray, " n"]:
    """The assignment after exchanges."""
    if len(ascending) <= instances or instances == 1:
        return instance
    held = exchange.ReplicaItems.from_assignment(ascending, instance, instances, equal)
    exchange.level_by_swaps(held)
    return held.updated_assignment(instance)
