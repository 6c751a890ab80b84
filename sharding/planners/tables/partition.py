"""Partitions a stack of equal layers, with leading and trailing layers, into balanced pipeline stages.

`tabulate.py` divides the layers of every candidate by `balanced_layers`.
"""

import math

_ROUNDING = 1e-9


def balanced_layers(before: float, layer: float, after: float, layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage owns so that the slowest stage is as fast as possible.

    Where not all stages need to be that slow, the first ones own fewer layers, because they hold the most microbatches.

    Args:
        before: Seconds of the leading layers, on the first stage.
        layer: Seconds of each layer.
        after: Seconds of the trailing layers, on the last stage.
        layers: Number of layers.
        stages: Number of stages, at most `layers`; each owns at least one layer.
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
    """The least sufficient times of a stage, in layers, that exactly fill a middle, the first or the last one."""
    inner = stages - 2
    filling_middle = math.ceil((layers + _ceil(first) + _ceil(last)) / stages)
    filling_first = math.ceil((layers - inner * _floor(first) - _floor(first - last)) / stages)
    filling_last = math.ceil((layers - inner * _floor(last) - _floor(last - first)) / stages)
    return float(filling_middle), first + filling_first, last + filling_last


def _floor(number: float) -> int:
    return math.floor(number + _ROUNDING)


def _ceil(number: float) -> int:
    return math.ceil(number - _ROUNDING)
