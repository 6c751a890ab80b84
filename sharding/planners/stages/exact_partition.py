"""The partition of a chain into consecutive stages whose slowest is as fast as possible, exactly.

A parametric search. Under a limit of seconds, each stage in turn takes as many layers as it can: as a stage never gets
faster with more layers, no partition within the limit ends a stage later, so this one finds one if there is any. If it
does not, no limit below the least seconds that it refused does; if it does, its slowest stage is the next limit. Limits
are bisected in between, until none is left: the result is that of dynamic programming over (layer, stage), as in
Optimus's appendix B (arXiv 2408.03505), in O(stages log(layers)) evaluations a limit.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

StageSeconds = Callable[[int, int, int], float]
"""Seconds of a stage, given its number, its first layer and its last, which is excluded.

Infinite if it does not fit; never less with more layers.
"""


class _Filled(NamedTuple):
    """What stages took under a limit of seconds.

    Attributes:
        slowest: Seconds of the slowest; infinite if they did not take all layers.
        refused: The least seconds that a stage would have taken with one layer more.
    """

    slowest: float
    refused: float


def best_partition(seconds: StageSeconds, layers: int, stages: int) -> tuple[int, ...] | None:
    """How many layers each stage owns, at least one, such that the slowest stage is as fast as possible.

    Of all such partitions, the one in which the first stages own the fewest, because they hold the most microbatches.
    None if no partition fits.

    Args:
        seconds: Of a stage.
        layers: Number of layers.
        stages: Number of stages.
    """
    if stages > layers:
        return None
    slowest, least = _fill(seconds, layers, stages, math.inf).slowest, 0.0
    if math.isinf(slowest):
        return None
    while least < slowest:
        middle = (least + slowest) / 2
        limit = middle if least < middle < slowest else least
        filled = _fill(seconds, layers, stages, limit)
        if math.isinf(filled.slowest):
            least = filled.refused
        else:
            slowest = filled.slowest
    return _fill_from_last(seconds, layers, stages, slowest)


def partition_by(weights: Float[np.ndarray, " n"], stages: int) -> tuple[int, ...] | None:
    """The partition whose largest sum of weights is as small as possible; None for more stages than layers."""
    before = np.append(0.0, np.cumsum(weights)).tolist()
    return best_partition(lambda stage, first, last: before[last] - before[first], len(weights), stages)


def _fill(seconds: StageSeconds, layers: int, stages: int, limit: float) -> _Filled:
    slowest, refused, first = 0.0, math.inf, 0
    for stage in range(stages):
        most = layers - (stages - 1 - stage)  # each stage after it takes at least one
        last = _furthest(lambda end, stage=stage, first=first: seconds(stage, first, end), first, most, limit)
        if last < most:
            refused = min(refused, seconds(stage, first, last + 1))
        if last == first:
            return _Filled(math.inf, refused)
        slowest, first = max(slowest, seconds(stage, first, last)), last
    return _Filled(slowest if first == layers else math.inf, refused)


def _furthest(seconds: Callable[[int], float], first: int, most: int, limit: float) -> int:
    """The last end up to `most` that takes at most `limit` seconds; `first` if none does."""
    low, high = first, most
    while low < high:
        middle = (low + high + 1) // 2
        value = seconds(middle)
        if value <= limit and math.isfinite(value):
            low = middle
        else:
            high = middle - 1
    return low


def _fill_from_last(seconds: StageSeconds, layers: int, stages: int, limit: float) -> tuple[int, ...]:
    """Each stage from the last to the first takes as many layers as it can within the limit."""
    counts, last = [], layers
    for stage in reversed(range(stages)):
        low, high = stage, last - 1  # each stage before it takes at least one
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if seconds(stage, middle, last) <= limit else (middle + 1, high)
        first = low if stage else 0
        counts.append(last - first)
        last = first
    return tuple(counts[::-1])
