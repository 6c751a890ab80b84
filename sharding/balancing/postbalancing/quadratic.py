"""Post-balancing of costs with a quadratic part, such as attention's, without padding (OrchMLLM, Algorithm 4)."""

import heapq

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing import unpadded
from sharding.balancing.postbalancing.pairwise_swaps import ReplicaItems

MAX_WHOLE_TOTAL = 1 << 45
"""Float costs are scaled to int64 so that their total times the replicas is at most this, far from an overflow."""
BISECTION_STEPS = 5
MAX_PAIRS = 16  # of replicas that swap at a time
PATIENCE = 12  # rounds in a row without a lower largest cost after which it ends


def quadratic_cost(lengths: Int[np.ndarray, " b"], quadratic_cost_weight: float) -> float:
    """Cost of a replica with sequences of these lengths: their sum + w times the sum of their squares."""
    float_lengths = lengths.astype(np.float64)
    return float((float_lengths + quadratic_cost_weight * float_lengths**2).sum())


def whole_costs(lengths: Int[np.ndarray, " n"], replicas: int, quadratic_cost_weight: float) -> Int[np.ndarray, " n"]:
    """The cost of every item, l + w l^2, as a whole number: scaled so that sums over them cannot overflow.

    Args:
        lengths: Of all replicas' items.
        replicas: Number of replicas to divide them among.
        quadratic_cost_weight: The paper's lambda, beta / alpha.
    """
    float_lengths = lengths.astype(np.float64)
    costs = float_lengths + quadratic_cost_weight * float_lengths**2
    scale = MAX_WHOLE_TOTAL / replicas / max(float(costs.sum()), 1.0)
    return np.rint(costs * scale).astype(np.int64)


def balance_quadratic(
    lengths: Int[np.ndarray, " n"], replicas: int, quadratic_cost_weight: float, equal: bool = False
) -> Int[np.ndarray, " n"]:
    """The replica of every item, with a cost of the costliest replica that is close to the least possible.

    The cost of a sequence, l + w l^2, adds up like a length, so it is balanced like one. Memory, which is proportional
    to the sum of lengths, may then differ between replicas; `balance_quadratic_within` bounds it.

    Args:
        lengths: Of all replicas' items.
        replicas: Number of replicas to divide them among.
        quadratic_cost_weight: The paper's lambda, beta / alpha.
        equal: Whether counts may differ by at most one.

    Raises:
        ValueError: There is no replica, or the lengths cannot be balanced.
    """
    unpadded.check_lengths(lengths, replicas)
    return unpadded.balance_unpadded(whole_costs(lengths, replicas, quadratic_cost_weight), replicas, equal)


def balance_quadratic_within(
    lengths: Int[np.ndarray, " n"], replicas: int, quadratic_cost_weight: float, tolerance: int
) -> Int[np.ndarray, " n"]:
    """The replica of every item: costs as level as possible while sums of lengths are level up to a tolerance.

    No sum of lengths exceeds

        limit = max(mean sum + tolerance, longest item + tolerance, largest sum of Algorithm 4)

    1. Algorithm 4 with a transitive comparison (`greedy_within`).
    2. `balance_quadratic` with the largest fraction of the square weight that keeps the sums within the limit.
    3. From the better of the two, costly replicas swap items with cheap ones within the limit.

    Args:
        lengths: Of all replicas' items.
        replicas: Number of replicas to divide them among.
        quadratic_cost_weight: The paper's lambda, beta / alpha.
        tolerance: The paper's interval v, in the unit of the lengths.

    Raises:
        ValueError: There is no replica, the tolerance is below 1, or the lengths cannot be balanced.
    """
    unpadded.check_lengths(lengths, replicas)
    if tolerance < 1:
        raise ValueError(f"tolerance is {tolerance}; it must be at least 1")
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order].astype(np.int64)
    float_lengths = ascending.astype(np.float64)
    costs = float_lengths + quadratic_cost_weight * float_lengths**2
    best = greedy_within(ascending[::-1], replicas, tolerance)[::-1]
    limit = max(float_lengths.sum() / replicas, float_lengths.max(initial=0)) + tolerance
    limit = max(limit, _largest_sum(best, float_lengths))
    weighted = _balance_with_reduced_weight(ascending, replicas, quadratic_cost_weight, limit)
    if _largest_sum(weighted, costs) < _largest_sum(best, costs):
        best = weighted
    if 1 < replicas < len(lengths):
        replica_items = ReplicaItems.from_assignment(ascending, best, replicas, equal=False)
        _swap_items(replica_items, np.concatenate((np.zeros(replica_items.placeholder_count), costs)), limit)
        best = replica_items.updated_assignment(best)
    replica_of = np.empty(len(lengths), np.int64)
    replica_of[order] = best
    return replica_of


def _balance_with_reduced_weight(
    lengths: Int[np.ndarray, " n"], replicas: int, quadratic_cost_weight: float, limit: float
) -> Int[np.ndarray, " n"]:
    """`balance_quadratic` with as much of the square weight as keeps the largest sum of lengths within the limit."""
    float_lengths = lengths.astype(np.float64)
    replica_of = balance_quadratic(lengths, replicas, quadratic_cost_weight)
    if _largest_sum(replica_of, float_lengths) <= limit:
        return replica_of
    best, low, high = unpadded.balance_unpadded(lengths, replicas), 0.0, 1.0
    for _ in range(BISECTION_STEPS):
        fraction = (low + high) / 2
        replica_of = balance_quadratic(lengths, replicas, fraction * quadratic_cost_weight)
        if _largest_sum(replica_of, float_lengths) > limit:
            high = fraction
        else:
            best, low = replica_of, fraction
    return best


def _largest_sum(replica_of: Int[np.ndarray, " n"], costs: Float[np.ndarray, " n"]) -> float:
    return float(np.bincount(replica_of, weights=costs).max(initial=0))


def greedy_within(descending: Int[np.ndarray, " n"], replicas: int, tolerance: int) -> Int[np.ndarray, " n"]:
    """Assigns every item, longest first, to the replica with the least sum of squares among those of similar sums.

    The paper's comparator treats sums that differ by less than the tolerance as equal, which is not transitive, so that
    its result depends on how the priority queue is built. Here sums are similar if they are in the same interval of
    that length.
    """
    queue = [(0, 0, 0, number) for number in range(replicas)]  # interval, sum of squares, sum, replica
    replica_of = []
    for length in descending.tolist():
        _, squares, total, number = queue[0]
        total += length
        heapq.heapreplace(queue, (total // tolerance, squares + length * length, total, number))
        replica_of.append(number)
    return np.array(replica_of, np.int64)


def _swap_items(replica_items: ReplicaItems, costs: Float[np.ndarray, " t"], limit: float) -> None:
    """Swaps one item for one between costly and cheap replicas, many pairs of replicas at a time.

    Args:
        replica_items: The items of the replicas; changed in place.
        costs: Of every item.
        limit: The most that a sum of lengths may become.
    """
    total = costs[replica_items.items].sum(axis=1)
    bound = max(float(total.mean()), float(costs.max()))
    pairs = min(MAX_PAIRS, len(total) // 2)
    shift = idle_rounds = 0
    while total.max() > bound * (1 + 1e-9) and idle_rounds < PATIENCE:
        order = np.argsort(total)
        heavy, light = order[::-1][:pairs], np.roll(order[:-pairs], -shift)[:pairs]
        largest = total[heavy[0]]
        swapped = _swap_best(replica_items, costs, total, limit, heavy, light)
        shift = 0 if swapped == pairs else (shift + 1) % (len(order) - pairs)
        idle_rounds = 0 if total.max() < largest * (1 - 1e-6) else idle_rounds + 1


def _swap_best(
    replica_items: ReplicaItems,
    costs: Float[np.ndarray, " t"],
    total: Float[np.ndarray, " d"],
    limit: float,
    heavy: Int[np.ndarray, " h"],
    light: Int[np.ndarray, " h"],
) -> int:
    """In every pair the swap that makes the costlier replica cheapest, if any does; how many pairs swapped."""
    heavy_items, light_items = replica_items.items[heavy], replica_items.items[light]
    length_difference = (
        replica_items.lengths[heavy_items][:, :, None] - replica_items.lengths[light_items][:, None, :]
    )  # [h, w, w]
    cost_difference = costs[heavy_items][:, :, None] - costs[light_items][:, None, :]  # [h, w, w]
    after = np.maximum(total[heavy][:, None, None] - cost_difference, total[light][:, None, None] + cost_difference)
    too_long = (length_difference > (limit - replica_items.sums[light])[:, None, None]) | (
        length_difference < (replica_items.sums[heavy] - limit)[:, None, None]
    )
    after[too_long] = np.inf
    best = after.reshape(len(heavy), -1).argmin(axis=1)
    pair = np.arange(len(heavy))
    heavy_column, light_column = np.divmod(best, light_items.shape[1])
    pair = pair[after[pair, heavy_column, light_column] < total[heavy] * (1 - 1e-12)]
    heavy_column, light_column, row = heavy_column[pair], light_column[pair], np.arange(len(pair))
    moved_length = length_difference[pair, heavy_column, light_column]
    moved_cost = cost_difference[pair, heavy_column, light_column]
    heavy_items, light_items = heavy_items[pair], light_items[pair]
    heavy_items[row, heavy_column], light_items[row, light_column] = (
        light_items[row, light_column],
        heavy_items[row, heavy_column],
    )
    replica_items.replace(heavy[pair], heavy_items, -moved_length)
    replica_items.replace(light[pair], light_items, moved_length)
    total[heavy[pair]] -= moved_cost
    total[light[pair]] += moved_cost
    return len(pair)
