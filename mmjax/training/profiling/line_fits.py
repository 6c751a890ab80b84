"""Lines through what runs took once a step and on the way between stages: by how many took part, and by size."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from mmjax.training.profiling.shallow_runs import MICROBATCHES, MeasuredRun
from sharding.costs.profiled import LinearFit
from sharding.plans.unit_plan import stage_layers
from sharding.schedules.ops import PipelineOp

Point = tuple[int, float, float]
"""How many took part, size, seconds."""


def once_per_step_line(runs: Sequence[MeasuredRun], kind: str) -> LinearFit:
    """Of `gather`, `reduce` or `update`: by instances, and parameters of a device."""
    return fit_line([point for run in runs for point in _once(run, kind)])


def _once(run: MeasuredRun, kind: str) -> Iterator[Point]:
    for unit in run.plan.units:
        for seconds, spans in zip(run.stage_seconds(unit.name, kind), stage_layers(unit, run.graph), strict=True):
            layers = [each for module, first, last in spans for each in run.graph[module].layers_between(first, last)]
            size = sum(count * layer.parameters_per_rank(unit.tp) for layer, count in layers)
            if seconds:
                yield unit.dp, size / unit.dp if kind == "update" else size, seconds


def hop_line(runs: Sequence[MeasuredRun]) -> LinearFit:
    """Of hops between different devices, forth and back: by the devices of both ends, and an instance's bytes."""
    return fit_line([point for run in runs for point in _hops(run)])


def _hops(run: MeasuredRun) -> Iterator[Point]:
    for (source, target), size in run.hop_bytes.items():
        ends = [run.unit_plan(unit) for unit, _ in (source, target)]
        here, there = (set(unit.stage_devices(stage)) for unit, (_, stage) in zip(ends, (source, target), strict=True))
        if here == there:
            continue  # nothing has to move
        for way in (
            PipelineOp("hop", *source, MICROBATCHES - 1, *target),
            PipelineOp("hop_back", *target, MICROBATCHES - 1, *source),
        ):
            if way in run.seconds:
                yield len(here | there), size / min(unit.dp for unit in ends), run.seconds[way]


def norm_line(runs: Sequence[MeasuredRun]) -> LinearFit:
    """Of agreeing on the norm: by stages."""
    norm = PipelineOp("norm", "", -1)
    return fit_line([(sum(unit.stage_count for unit in run.plan.units), 0.0, run.seconds[norm]) for run in runs])


def fit_line(points: Sequence[Point]) -> LinearFit:
    """The line with the least squares of those that nowhere fall; zero without points."""
    if not points:
        return LinearFit(0.0, 0.0, 0.0)
    counts, sizes, seconds = np.array(points, float).T
    terms = np.stack([np.ones_like(counts), counts, sizes], axis=1)
    # What does not vary explains nothing, and columns of one magnitude are solved more exactly.
    scale = np.array([1.0, *(np.ptp(term) and np.abs(term).max() for term in (counts, sizes))])
    found, _ = nnls(terms * np.divide(1.0, scale, out=np.zeros(3), where=scale > 0), seconds)
    return LinearFit(*np.divide(found, scale, out=np.zeros(3), where=scale > 0).tolist())
