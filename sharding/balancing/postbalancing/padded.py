"""Post-balancing with padding: every sequence costs what the batch's longest does (OrchMLLM 5.1, Algorithm 2)."""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing.contiguous_partition import partition_minimizing_maximum
from sharding.balancing.postbalancing.unpadded import check_lengths


def padded_cost(lengths: Int[np.ndarray, " b"], square_weight: float = 0.0) -> float:
    """Of an instance with sequences of these lengths: b (m + w m^2), with m the longest (equation 2)."""
    longest = float(lengths.max(initial=0))
    return len(lengths) * (longest + square_weight * longest**2)


def balance_padded(
    lengths: Int[np.ndarray, " n"], instances: int, equal: bool = False, square_weight: float = 0.0
) -> Int[np.ndarray, " n"]:
    """The instance of every item, with the least possible cost of the costliest instance.

    Sequences of like length share an instance: sorted, they are cut into runs under a bound, and the bound is as low
    as it can be (Algorithm 2; `contiguous.least_bound` says what differs from the print). That is optimal, since some
    optimal division consists of runs. Fewer runs than instances can do; the rest then hold nothing.

    Args:
        lengths: Of all instances' items.
        instances: Among how many to divide them.
        equal: Counts differ by at most one; the longest are in the smaller batches.
        square_weight: The paper's beta / alpha, for the part of the cost that grows with a length's square.

    Raises:
        ValueError: No instance, or lengths that cannot be balanced.
    """
    check_lengths(lengths, instances)
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order].astype(np.float64)
    if equal:
        counts = np.full(instances, len(lengths) // instances)
        counts[instances - len(lengths) % instances :] += 1
    else:
        counts = np.diff([*_begins(descending + square_weight * descending**2, instances), len(lengths)])
    instance = np.empty(len(lengths), np.int64)
    instance[order] = np.repeat(np.arange(len(counts)), counts)
    return instance


def _begins(descending: Float[np.ndarray, " n"], instances: int) -> list[int]:
    each = descending.tolist()

    def fill(begin: int, bound: float) -> int:
        if not each[begin]:
            return len(each)
        return min(begin + int(bound // each[begin]), len(each))

    return partition_minimizing_maximum(len(each), instances, lambda begin, end: (end - begin) * each[begin], fill)
