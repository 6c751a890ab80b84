"""Cutting a run of equal layers, with something before the first and behind the last, into balanced stages."""

import math

_ROUNDING = 1e-9


def balanced_layers(before: float, layer: float, after: float, layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage owns so that the slowest stage is as fast as can be.

    Where stages need not all be as slow as that, the first ones are relieved: they hold the most microbatches.

    Args:
        before, layer, after: Seconds of what stands before the first layer, of each layer, and behind the last.
        layers: Number of layers.
        stages: Number of stages, at most `layers`; each owns at least one.
    """
    if stages == 1:
        return (layers,)
    first, last = (seconds / max(layer, 1e-30) for seconds in (before, after))  # in layers
    slowest = max(1 + max(first, last), min(_limits(first, last, layers, stages)))
    middle, ends = _floor(slowest), [_floor(slowest - first), _floor(slowest - last)]
    counts = [ends[0], *[middle] * (stages - 2), ends[1]]
    excess = sum(counts) - layers
    while excess:
        for stage in range(stages):
            if excess and counts[stage] > 1:
                counts[stage] -= 1
                excess -= 1
    return tuple(counts)


def _limits(first: float, last: float, layers: int, stages: int) -> tuple[float, float, float]:
    """The least time that is enough, in layers, among those that just fill a middle, the first or the last stage."""
    inner = stages - 2
    whole = math.ceil((layers + _ceil(first) + _ceil(last)) / stages)
    filling_first = math.ceil((layers - inner * _floor(first) - _floor(first - last)) / stages)
    filling_last = math.ceil((layers - inner * _floor(last) - _floor(last - first)) / stages)
    return float(whole), first + filling_first, last + filling_last


def _floor(number: float) -> int:
    return math.floor(number + _ROUNDING)


def _ceil(number: float) -> int:
    return math.ceil(number - _ROUNDING)
