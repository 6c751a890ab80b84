"""Post-balancing with padding: every sequence costs as much as the longest of its batch (OrchMLLM 5.1, Algorithm 2).

Only benchmarks balance so: phases of the trainer pack items into rows.
"""

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing.array_sorting import stable_order
from sharding.balancing.postbalancing.contiguous_partition import partition_minimizing_maximum
from sharding.balancing.postbalancing.unpadded import check_lengths


def padded_cost(lengths: Int[np.ndarray, " b"], quadratic_cost_weight: float = 0.0) -> float:
    """Cost of a replica with b sequences of these lengths: b (m + w m^2), where m is the longest (equation 2)."""
    longest = float(lengths.max(initial=0))
    return len(lengths) * (longest + quadratic_cost_weight * longest**2)


def balance_padded(
    lengths: Int[np.ndarray, " n"], replicas: int, equal: bool = False, quadratic_cost_weight: float = 0.0
) -> Int[np.ndarray, " n"]:
    """The replica of every item, with the least possible cost of the costliest replica.

    Sequences of similar length share a replica: sorted, they are cut into segments under the least possible bound
    (Algorithm 2; `partition_minimizing_maximum` says what differs from the print). That is optimal, since some optimal
    division consists of segments. There may be fewer segments than replicas; then some replicas get nothing.

    Args:
        lengths: Lengths of all replicas' items.
        replicas: Number of replicas to divide them among.
        equal: Whether counts may differ by at most one; the longest are in the smaller batches.
        quadratic_cost_weight: The paper's beta / alpha, for the term of the cost that grows with the square of a
            length.

    Raises:
        ValueError: There is no replica, or the lengths cannot be balanced.
    """
    check_lengths(lengths, replicas)
    order = stable_order(lengths)[::-1]
    descending = lengths[order].astype(np.float64)
    if equal:
        counts = np.full(replicas, len(lengths) // replicas)
        counts[replicas - len(lengths) % replicas :] += 1
    else:
        begins = _segment_begins(descending + quadratic_cost_weight * descending**2, replicas)
        counts = np.diff(begins, append=len(lengths))
    replica_of = np.empty(len(lengths), np.int64)
    replica_of[order] = np.repeat(np.arange(len(counts)), counts)
    return replica_of


def _segment_begins(descending_costs: Float[np.ndarray, " n"], replicas: int) -> Int[np.ndarray, " s"]:
    costs = descending_costs.tolist()

    def cut(bound: float) -> list[int]:
        begins, begin = [], 0
        while begin < len(costs):
            begins.append(begin)
            begin += int(bound // costs[begin]) if costs[begin] else len(costs)
        return begins

    def segment_costs(begins: Int[np.ndarray, " s"], ends: Int[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
        return (ends - begins) * descending_costs[begins]

    return partition_minimizing_maximum(len(costs), replicas, segment_costs, cut)
