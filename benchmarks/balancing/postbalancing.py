"""How fast and how level post-balancing and node-wise placement are, beside the papers' algorithms in the same run.

What the figures mean (OrchMLLM, arXiv 2503.23830): lengths are whole tokens; max / mean is the largest sum of lengths
of an instance over the mean sum (objective of 5.1, without padding). Node-wise, every instance has 60 samples, which
balancing has divided into as many batches; what is measured is the most that any instance sends to other nodes
(equation 5), over the mean of what instances have, or over a lower bound of the optimum. Hosting batch i at instance i
("identity") gives 1.753 of the mean at 2,560 instances; no placement is below 1.058 (the linear program).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.balancing import postbalancing_references as references
from sharding.balancing.postbalancing import nodewise, padded, unpadded
from sharding.balancing.postbalancing.nodewise_milp import solve_placement

PER_NODE, EACH = 8, 60
PROGRAM_SECONDS = 30.0
REPEATS = 9

Row = dict[str, Any]


def draw_lengths(items: int) -> np.ndarray:
    """Log-normal around 512 tokens, between 16 and 32,768."""
    return np.random.default_rng(0).lognormal(np.log(512), 1, items).clip(16, 32768).astype(int)


def measure() -> list[Row]:
    """Every row of this part."""
    rows = []
    for items, instances, goal in ((153_600, 2560, 90.0), (4096, 64, 2.0)):
        rows += balancing_rows(items, instances, goal)
    rows += padded_rows(153_600, 2560)
    for instances in (64, 128, 256, 512):
        rows += small_cluster_rows(instances)
    return rows + large_cluster_rows(2560)


def balancing_rows(items: int, instances: int, goal: float) -> list[Row]:
    """Free and equal counts: milliseconds, and the largest sum over the mean."""
    lengths = draw_lengths(items)
    listed = lengths.tolist()
    of = f"{items:,} lengths over {instances:,}"
    rows = []
    for equal, counts, other in (
        (False, "free counts", references.greedy),
        (True, "equal counts", references.differencing),
    ):
        ours, instance = best_of(lambda equal=equal: unpadded.balance_unpadded(lengths, instances, equal))
        theirs, batches = best_of(lambda other=other: other(listed, instances), 3)
        name = f"{of}, {counts}"
        rows.append(row(f"{name}: ms", ours, goal, theirs))
        reference = spread(lengths, references.assignment(batches, items))
        rows.append(row(f"{name}: max / mean", spread(lengths, instance), 1.00002, reference))
    return rows


def padded_rows(items: int, instances: int) -> list[Row]:
    """Milliseconds with padding, and that the bound is the paper's."""
    lengths = draw_lengths(items)
    listed = lengths.tolist()
    ours, instance = best_of(lambda: padded.balance_padded(lengths, instances), 5)
    theirs, batches = best_of(lambda: references.padded(listed, instances), 1)
    largest = max(padded.padded_cost(lengths[instance == number]) for number in range(instances))
    reference = max(padded.padded_cost(lengths[batch]) for batch in batches)
    of = f"{items:,} lengths over {instances:,}, padded"
    return [row(f"{of}: ms", ours, None, theirs), row(f"{of}: largest batch", largest, reference, reference)]


def small_cluster_rows(instances: int) -> list[Row]:
    """Milliseconds, and what the worst instance sends over what it sends at least, by the integer program's bound."""
    problem = sampled(instances)
    ours, hosts = best_of(lambda: nodewise.place_batches(*problem, instances, PER_NODE))
    begin = time.perf_counter()
    try:
        _, least = solve_placement(*problem, instances, PER_NODE, PROGRAM_SECONDS)
    except TimeoutError:
        least = 0.0
    theirs = (time.perf_counter() - begin) * 1e3
    of = f"node-wise, {instances} instances"
    return [
        row(f"{of}: ms", ours, 6.0, theirs),
        row(f"{of}: worst / program's bound", worst_send_volume(*problem, hosts) / least if least else None, 1.03, 1.0),
    ]


def large_cluster_rows(instances: int) -> list[Row]:
    """Milliseconds, and what the worst instance sends over the mean of what all have; identity order beside it."""
    problem = sampled(instances)
    mean = problem[0].sum() / instances
    ours, hosts = best_of(lambda: nodewise.place_batches(*problem, instances, PER_NODE))
    of = f"node-wise, {instances:,} instances"
    identity = float(worst_send_volume(*problem, np.arange(instances)) / mean)
    return [
        row(f"{of}: ms", ours, 40.0, None),
        row(f"{of}: worst / mean", float(worst_send_volume(*problem, hosts) / mean), 1.12, identity),
    ]


def sampled(instances: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths of all samples, the instance that has each, and its balanced batch."""
    lengths = draw_lengths(instances * EACH)
    return lengths, np.repeat(np.arange(instances), EACH), unpadded.balance_unpadded(lengths, instances)


def worst_send_volume(lengths: np.ndarray, source: np.ndarray, batch: np.ndarray, hosts: np.ndarray) -> int:
    """What the worst instance sends to other nodes."""
    return int(nodewise.inter_node_volume(lengths, source, hosts[batch], np.arange(len(hosts)) // PER_NODE).max())


def spread(lengths: np.ndarray, instance: np.ndarray) -> float:
    """The largest sum of an instance over the mean."""
    sums = np.bincount(instance, weights=lengths)
    return float(sums.max() / sums.mean())


def best_of(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """The least milliseconds of several, since others use the machine too, and the result."""
    least, result = np.inf, None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        least = min(least, (time.perf_counter() - begin) * 1e3)
    return least, result


def row(name: str, value: float | None, goal: float | None, reference: float | None) -> Row:
    """One row; without a goal nothing is met or missed."""
    met = None if goal is None else value is not None and value <= goal
    return {"name": name, "value": value, "goal": goal, "met": met, "reference": reference}
