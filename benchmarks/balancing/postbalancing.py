"""How fast and how level post-balancing and node-wise placement are, compared with the papers' algorithms.

The figures are OrchMLLM's (arXiv 2503.23830). Lengths are whole tokens; max / mean is the largest sum of lengths of a
replica over the mean sum (objective of 5.1, without padding). For node-wise placement every replica has 60 samples,
which balancing has divided into as many batches as there are replicas; measured is the most that any replica sends to
other nodes (equation 5), over the mean of what replicas have, or over a lower bound of the optimum. Placing batch i at
replica i ("identity") gives 1.753 of the mean at 2,560 replicas; no placement is below 1.058 (the linear program).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.balancing import references
from sharding.balancing.postbalancing.nodewise import SentItems, inter_node_volume, place_batches
from sharding.balancing.postbalancing.nodewise_milp import solve_placement
from sharding.balancing.postbalancing.padded import balance_padded, padded_cost
from sharding.balancing.postbalancing.unpadded import balance_unpadded

PER_NODE, SAMPLES_PER_REPLICA = 8, 60
MILP_SECONDS = 30.0
REPEATS = 9

Row = dict[str, Any]


def draw_lengths(items: int) -> np.ndarray:
    """Log-normal lengths around 512 tokens, between 16 and 32,768."""
    return np.random.default_rng(0).lognormal(np.log(512), 1, items).clip(16, 32768).astype(int)


def measure() -> list[Row]:
    """Returns all rows of this section."""
    rows = []
    for items, replicas, goal in ((153_600, 2560, 90.0), (4096, 64, 2.0)):
        rows += balancing_rows(items, replicas, goal)
    rows += padded_rows(153_600, 2560)
    for replicas in (64, 128, 256, 512):
        rows += small_cluster_rows(replicas)
    return rows + large_cluster_rows(2560)


def balancing_rows(items: int, replicas: int, goal: float) -> list[Row]:
    """Rows with free and with equal counts: milliseconds, and the largest sum over the mean."""
    lengths = draw_lengths(items)
    listed = lengths.tolist()
    title = f"{items:,} lengths over {replicas:,}"
    rows = []
    for equal, counts, reference_algorithm in (
        (False, "free counts", references.greedy),
        (True, "equal counts", references.differencing),
    ):
        milliseconds, replica_of = best_of(lambda equal=equal: balance_unpadded(lengths, replicas, equal))
        reference_milliseconds, batches = best_of(lambda algorithm=reference_algorithm: algorithm(listed, replicas), 3)
        name = f"{title}, {counts}"
        rows.append(row(f"{name}: ms", milliseconds, goal, reference_milliseconds))
        reference = max_over_mean(lengths, references.assignment(batches, items))
        rows.append(row(f"{name}: max / mean", max_over_mean(lengths, replica_of), 1.00002, reference))
    return rows


def padded_rows(items: int, replicas: int) -> list[Row]:
    """Milliseconds with padding, and the cost of the costliest batch, which must be the paper's."""
    lengths = draw_lengths(items)
    listed = lengths.tolist()
    milliseconds, replica_of = best_of(lambda: balance_padded(lengths, replicas), 5)
    reference_milliseconds, batches = best_of(lambda: references.padded(listed, replicas), 1)
    largest = max(padded_cost(lengths[replica_of == number]) for number in range(replicas))
    reference = max(padded_cost(lengths[batch]) for batch in batches)
    title = f"{items:,} lengths over {replicas:,}, padded"
    return [
        row(f"{title}: ms", milliseconds, None, reference_milliseconds),
        row(f"{title}: largest batch", largest, reference, reference),
    ]


def small_cluster_rows(replicas: int) -> list[Row]:
    """Milliseconds, and what the worst replica sends over the lower bound of the integer program."""
    problem = balanced_samples(replicas)
    milliseconds, placement = best_of(lambda: place_batches(problem, replicas, PER_NODE))
    begin = time.perf_counter()
    try:
        _, bound = solve_placement(problem, replicas, PER_NODE, MILP_SECONDS)
    except TimeoutError:
        bound = 0.0
    reference_milliseconds = (time.perf_counter() - begin) * 1e3
    title = f"node-wise, {replicas} replicas"
    over_bound = worst_send_volume(problem, placement) / bound if bound else None
    return [
        row(f"{title}: ms", milliseconds, 6.0, reference_milliseconds),
        row(f"{title}: worst / program's bound", over_bound, 1.03, 1.0),
    ]


def large_cluster_rows(replicas: int) -> list[Row]:
    """Milliseconds, and what the worst replica sends over the mean of what all have; also for identity placement."""
    problem = balanced_samples(replicas)
    mean = problem.lengths.sum() / replicas
    milliseconds, placement = best_of(lambda: place_batches(problem, replicas, PER_NODE))
    title = f"node-wise, {replicas:,} replicas"
    identity = float(worst_send_volume(problem, np.arange(replicas)) / mean)
    return [
        row(f"{title}: ms", milliseconds, 40.0, None),
        row(f"{title}: worst / mean", float(worst_send_volume(problem, placement) / mean), 1.12, identity),
    ]


def balanced_samples(replicas: int) -> SentItems:
    """All samples, where they are, and their balanced batches."""
    lengths = draw_lengths(replicas * SAMPLES_PER_REPLICA)
    source = np.repeat(np.arange(replicas), SAMPLES_PER_REPLICA)
    return SentItems(lengths, source, balance_unpadded(lengths, replicas))


def worst_send_volume(items: SentItems, placement: np.ndarray) -> int:
    """The most that a replica sends to other nodes."""
    nodes = np.arange(len(placement)) // PER_NODE
    return int(inter_node_volume(items.lengths, items.source, placement[items.batch], nodes).max())


def max_over_mean(lengths: np.ndarray, replica_of: np.ndarray) -> float:
    """The largest sum of a replica over the mean."""
    sums = np.bincount(replica_of, weights=lengths)
    return float(sums.max() / sums.mean())


def best_of(call: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """The least milliseconds of several calls, since the machine is shared, and the last result."""
    least, result = np.inf, None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = call()
        least = min(least, (time.perf_counter() - begin) * 1e3)
    return least, result


def row(name: str, value: float | None, goal: float | None, reference: float | None) -> Row:
    """Makes a row of the table; without a goal `met` is None."""
    met = None if goal is None else value is not None and value <= goal
    return {"name": name, "value": value, "goal": goal, "met": met, "reference": reference}
