"""The partition of a chain into consecutive stages whose slowest is as fast as possible, exactly.

Dynamic programming over (layer, stage), as in Optimus's appendix B (arXiv 2408.03505), for stages of which each takes
seconds of its own, or has room for fewer layers than another:

    F(b, k) = min_a max(F(a, k - 1), t_k(a, b))

F(b, k) is the slowest of the first k stages where these own the first b layers, and t_k(a, b) what stage k takes with
layers a up to b. As every stage owns a layer, F may fall where b grows: stages that fill up greedily under a limit of
seconds can leave a layer to one that has no room for it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

StageTable = Float[np.ndarray, "ends ends"]
"""Seconds of a stage at [first, last], the layers that it owns, of which the last is excluded.

Infinite if it does not fit, or owns none; never less with more layers.
"""

_ROUNDING = 1e-12
"""A partition is as fast as another that takes this share less: equal sums of floats differ by rounding."""


def best_partition(tables: Sequence[StageTable]) -> tuple[int, ...] | None:
    """How many layers each stage owns, at least one, such that the slowest stage is as fast as possible.

    Of all such partitions, the one whose first stages own the fewest, because these hold the most microbatches: for
    every k, its first k stages together own no more layers than the first k stages of any other. One partition does so
    for all k: where two are within a limit, so is the partition with the earlier of their two boundaries everywhere.

    Args:
        tables: Seconds of each stage by the layers that it owns.

    Returns:
        None if no partition fits.
    """
    stages, layers = len(tables), len(tables[0]) - 1
    if stages > layers:
        return None
    width = layers - stages + 1  # stage k ends after layer k + 1 at the earliest, and k + width at the latest
    slowest = [tables[0][0, 1 : 1 + width]]
    for stage in range(1, stages):
        seconds = tables[stage][stage : stage + width, stage + 1 : stage + 1 + width]
        slowest.append(np.maximum(slowest[-1][:, None], seconds).min(axis=0))
    if np.isinf(slowest[-1][-1]):
        return None
    limit = slowest[-1][-1] * (1 + _ROUNDING)
    cuts = [layers]
    for stage in reversed(range(1, stages)):
        within = (slowest[stage - 1] <= limit) & (tables[stage][stage : stage + width, cuts[-1]] <= limit)
        cuts.append(stage + int(within.argmax()))
    return tuple(np.diff([0, *cuts[::-1]]).tolist())


def best_partition_of_bounds(
    bounds: Sequence[StageTable], seconds: Callable[[int, int, int], float]
) -> tuple[int, ...] | None:
    """`best_partition` where what a stage takes is computed only for the partitions that lower bounds leave.

    The best partition by the bounds is computed; the bounds of its stages, and of stages with more layers, are raised
    to what they take; and so on, until one takes no more than its bounds.

    Args:
        bounds: Lower bounds of what each stage takes, which are raised in place; stages that take the same share one.
        seconds: Gives the seconds of a stage from its number, its first layer and its last, which is excluded.
    """
    while counts := best_partition(bounds):
        ends = np.cumsum(counts).tolist()
        stages = [(stage, end - counts[stage], end) for stage, end in enumerate(ends)]
        expected = max(bounds[stage][first, last] for stage, first, last in stages)
        taken = [seconds(*stage) for stage in stages]
        if max(taken) <= expected * (1 + _ROUNDING):
            return counts
        for (stage, first, last), least in zip(stages, taken, strict=True):
            if least > bounds[stage][first, last]:
                more = bounds[stage][: first + 1, last:]
                np.maximum(more, least, out=more)
    return None


def partition_by(weights: Float[np.ndarray, " n"], stages: int) -> tuple[int, ...] | None:
    """The partition whose largest sum of weights is as small as possible; None for more stages than layers."""
    return best_partition([sums_between(np.append(0.0, np.cumsum(weights)))] * stages)


def sums_between(before: Float[np.ndarray, " ends"]) -> StageTable:
    """The table of a stage that takes the sum of what its layers do, given the sums of all layers before each."""
    layers = np.arange(len(before))
    return np.where(layers[:, None] < layers, before - before[:, None], np.inf)
