"""Post-balancing where attention's square counts, without padding (OrchMLLM, appendix A, Algorithm 4)."""

import heapq

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.postbalancing import unpadded
from sharding.balancing.postbalancing.pairwise_swaps import ReplicaItems

STEPS = 1 << 45
"""Costs are balanced as whole numbers whose total is at most this, over the instances."""
PROBES = 6
PAIRS = 16  # of instances that exchange at a time
PATIENCE = 12  # rounds in a row without a lower largest cost


def quadratic_cost(lengths: Int[np.ndarray, " b"], square_weight: float) -> float:
    """Of an instance with sequences of these lengths: their sum + w times the sum of their squares."""
    exact = lengths.astype(np.float64)
    return float((exact + square_weight * exact**2).sum())


def balance_quadratic(
    lengths: Int[np.ndarray, " n"], instances: int, square_weight: float, equal: bool = False
) -> Int[np.ndarray, " n"]:
    """The instance of every item, so that the costliest instance costs as little as can easily be.

    A sequence's cost, l + w l^2, adds up like a length, so it is balanced like one. Memory, which goes with the sum of
    lengths, may then differ; `balance_within` holds it.

    Args:
        lengths: Of all instances' items.
        instances: Among how many to divide them.
        square_weight: The paper's lambda, beta / alpha.
        equal: Counts differ by at most one.

    Raises:
        ValueError: No instance, or lengths that cannot be balanced.
    """
    unpadded.check_lengths(lengths, instances)
    exact = lengths.astype(np.float64)
    costs = exact + square_weight * exact**2
    scale = STEPS / instances / max(float(costs.sum()), 1.0)
    return unpadded.balance_unpadded(np.rint(costs * scale).astype(np.int64), instances, equal)


def balance_quadratic_within(
    lengths: Int[np.ndarray, " n"], instances: int, square_weight: float, tolerance: int
) -> Int[np.ndarray, " n"]:
    """The instance of every item: costs as level as they can be while sums of lengths stay level up to a tolerance.

    No sum ends above the mean (or the longest item) by more than the tolerance, or above Algorithm 4's own largest.
    Starts with the better of Algorithm 4 as it is meant (`greedy_within`) and `balance` with the largest part of the
    square weight that keeps to that; then costly instances exchange items with cheap ones.

    Args:
        lengths: Of all instances' items.
        instances: Among how many to divide them.
        square_weight: The paper's lambda, beta / alpha.
        tolerance: The paper's interval v, in the unit of the lengths.

    Raises:
        ValueError: No instance, a tolerance below 1, or lengths that cannot be balanced.
    """
    unpadded.check_lengths(lengths, instances)
    if tolerance < 1:
        raise ValueError(f"a tolerance of {tolerance} is no interval")
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order].astype(np.int64)
    exact = ascending.astype(np.float64)
    costs = exact + square_weight * exact**2
    found = greedy_within(ascending[::-1], instances, tolerance)[::-1]
    limit = max(_largest(found, exact), exact.sum() / instances + tolerance, exact.max(initial=0) + tolerance)
    weighted = _weighted(ascending, instances, square_weight, limit)
    if _largest(weighted, costs) < _largest(found, costs):
        found = weighted
    if 1 < instances < len(lengths):
        held = ReplicaItems.from_assignment(ascending, found, instances, equal=False)
        _exchange(held, np.concatenate((np.zeros(held.placeholder_count), costs)), limit)
        found = held.updated_assignment(found)
    instance = np.empty(len(lengths), np.int64)
    instance[order] = found
    return instance


def _weighted(
    lengths: Int[np.ndarray, " n"], instances: int, square_weight: float, limit: float
) -> Int[np.ndarray, " n"]:
    """`balance` with as much of the square weight as keeps the largest sum of lengths within the limit."""
    exact = lengths.astype(np.float64)
    kept, low, high = unpadded.balance_unpadded(lengths, instances), 0.0, 2.0
    for _ in range(PROBES):
        part = (low + high) / 2
        found = balance_quadratic(lengths, instances, part * square_weight)
        if _largest(found, exact) > limit:
            high = part
        else:
            kept, low = found, part
        if low == 1:
            break
    return kept


def _largest(instance: Int[np.ndarray, " n"], each: Float[np.ndarray, " n"]) -> float:
    return float(np.bincount(instance, weights=each).max(initial=0))


def greedy_within(descending: Int[np.ndarray, " n"], instances: int, tolerance: int) -> Int[np.ndarray, " n"]:
    """Every item, largest first, to the instance with the least sum of squares among those whose sums are alike.

    The printed comparator calls sums alike that differ by less than the tolerance, which is not transitive, so that a
    priority queue's answer depends on how it is built. Here they are alike if they lie in the same interval of that
    length.
    """
    queue = [(0, 0, 0, number) for number in range(instances)]  # interval, squares, sum, instance
    instance = []
    for length in descending.tolist():
        _, squares, total, number = queue[0]
        total += length
        heapq.heapreplace(queue, (total // tolerance, squares + length * length, total, number))
        instance.append(number)
    return np.array(instance, np.int64)


def _exchange(held: ReplicaItems, costs: Float[np.ndarray, " t"], limit: float) -> None:
    """Exchanges of one item for one between costly and cheap instances, many pairs at a time.

    Args:
        held: What the instances hold; changed in place.
        costs: Of every item.
        limit: Above which no exchange may lift a sum of lengths.
    """
    total = costs[held.items].sum(axis=1)
    bound = max(float(total.mean()), float(costs.max()))
    pairs = min(PAIRS, len(total) // 2)
    met = idle = 0
    while total.max() > bound * (1 + 1e-9) and idle < PATIENCE:
        order = np.argsort(total)
        heavy, light = order[::-1][:pairs], np.roll(order[:-pairs], -met)[:pairs]
        largest = total[heavy[0]]
        moved = _exchange_best(held, costs, total, limit, heavy, light)
        met = 0 if moved == pairs else (met + 1) % (len(order) - pairs)
        idle = 0 if total.max() < largest * (1 - 1e-6) else idle + 1


def _exchange_best(
    held: ReplicaItems,
    costs: Float[np.ndarray, " t"],
    total: Float[np.ndarray, " d"],
    limit: float,
    heavy: Int[np.ndarray, " h"],
    light: Int[np.ndarray, " h"],
) -> int:
    """In every pair the exchange that makes the costlier one cheapest, if any does; how many pairs did."""
    mine, theirs = held.items[heavy], held.items[light]
    longer = held.lengths[mine][:, :, None] - held.lengths[theirs][:, None, :]
    dearer = costs[mine][:, :, None] - costs[theirs][:, None, :]
    after = np.maximum(total[heavy][:, None, None] - dearer, total[light][:, None, None] + dearer)
    too_long = (longer > (limit - held.sums[light])[:, None, None]) | (
        longer < (held.sums[heavy] - limit)[:, None, None]
    )
    after[too_long] = np.inf
    best = after.reshape(len(heavy), -1).argmin(axis=1)
    row = np.arange(len(heavy))
    give, take = np.divmod(best, theirs.shape[1])
    row = row[after[row, give, take] < total[heavy] * (1 - 1e-12)]
    give, take, here = give[row], take[row], np.arange(len(row))
    longer, dearer = longer[row, give, take], dearer[row, give, take]
    mine, theirs = mine[row], theirs[row]
    mine[here, give], theirs[here, take] = theirs[here, take], mine[here, give]
    held.replace(heavy[row], mine, -longer)
    held.replace(light[row], theirs, longer)
    total[heavy[row]] -= dearer
    total[light[row]] += dearer
    return len(row)
