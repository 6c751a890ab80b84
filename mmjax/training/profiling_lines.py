"""Lines through what runs took once a step and on the way between stages: by how many took part, and by size."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from mmjax.training.profiling_runs import MICROBATCHES, Run
from sharding.ops import Part
from sharding.plan import stage_layers
from sharding.profiled_costs import Line

Point = tuple[int, float, float]
"""How many took part, size, seconds."""


def once_line(runs: Sequence[Run], kind: str) -> Line:
    """Of `gather`, `reduce` or `update`: by instances, and parameters of a device."""
    return line([point for run in runs for point in _once(run, kind)])


def _once(run: Run, kind: str) -> Iterator[Point]:
    for unit in run.plan.units:
        for seconds, spans in zip(run.stages(unit.name, kind), stage_layers(unit, run.graph), strict=True):
            layers = [each for module, first, last in spans for each in run.graph[module].run(first, last)]
            size = sum(count * layer.on_rank(unit.tp) for layer, count in layers)
            if seconds:
                yield unit.dp, size / unit.dp if kind == "update" else size, seconds


def hop_line(runs: Sequence[Run]) -> Line:
    """Of hops between different devices, forth and back: by the devices of both ends, and an instance's bytes."""
    return line([point for run in runs for point in _hops(run)])


def _hops(run: Run) -> Iterator[Point]:
    for (source, target), size in run.bytes_between.items():
        ends = [run.plan_of(unit) for unit, _ in (source, target)]
        here, there = (set(unit.stage_devices(stage)) for unit, (_, stage) in zip(ends, (source, target), strict=True))
        if here == there:
            continue  # nothing has to move
        for way in (
            Part("hop", *source, MICROBATCHES - 1, *target),
            Part("hop_back", *target, MICROBATCHES - 1, *source),
        ):
            if way in run.seconds:
                yield len(here | there), size / min(unit.dp for unit in ends), run.seconds[way]


def norm_line(runs: Sequence[Run]) -> Line:
    """Of agreeing on the norm: by stages."""
    norm = Part("norm", "", -1)
    return line([(sum(unit.stages for unit in run.plan.units), 0.0, run.seconds[norm]) for run in runs])


def line(points: Sequence[Point]) -> Line:
    """The line with the least squares of those that nowhere fall; zero without points."""
    if not points:
        return Line(0.0, 0.0, 0.0)
    counts, sizes, seconds = np.array(points, float).T
    terms = np.stack([np.ones_like(counts), counts, sizes], axis=1)
    # What does not vary explains nothing, and columns of one magnitude are solved more exactly.
    scale = np.array([1.0, *(np.ptp(term) and np.abs(term).max() for term in (counts, sizes))])
    found, _ = nnls(terms * np.divide(1.0, scale, out=np.zeros(3), where=scale > 0), seconds)
    return Line(*np.divide(found, scale, out=np.zeros(3), where=scale > 0).tolist())
