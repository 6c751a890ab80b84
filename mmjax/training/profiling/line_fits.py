"""Linear fits of the seconds of ops that run once a step, and of hops: by the number of participants, and by size.

`layer_profile.py` puts them into the profile beside the layers.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from mmjax.training.profiling.shallow_runs import MICROBATCHES, MeasuredRun
from sharding.costs.profiled import LinearFit
from sharding.plans.unit_layers import stage_layers
from sharding.schedules.ops import OpKind, PipelineOp

Point = tuple[int, float, float]
"""A measurement to fit: (participants, size, seconds)."""


def once_per_step_line(runs: Sequence[MeasuredRun], kind: OpKind) -> LinearFit:
    """Fits `gather`, `reduce` or `update` by the number of ranks that divide state, and by parameters of a device."""
    return fit_line([point for run in runs for point in _once_per_step_points(run, kind)])


def _once_per_step_points(run: MeasuredRun, kind: OpKind) -> Iterator[Point]:
    for unit in run.plan.units:
        stages = zip(run.stage_seconds(unit.name, kind), stage_layers(unit, run.graph), strict=True)
        for seconds, layer_runs in stages:
            size = sum(
                count * layer.parameters_per_rank(unit.parallelism.tp)
                for module, first, last in layer_runs
                for layer, count in run.graph[module].layers_between(first, last)
            )
            if seconds:
                ranks = unit.parallelism.dp * unit.parallelism.cp
                yield ranks, size / ranks if kind == "update" else size, seconds


def hop_line(runs: Sequence[MeasuredRun]) -> LinearFit:
    """Fits hops between different devices by the number of devices at both ends, and by a rank's bytes."""
    return fit_line([point for run in runs for point in _hop_points(run)])


def _hop_points(run: MeasuredRun) -> Iterator[Point]:
    for (source, target), size in run.hop_bytes.items():
        units = [run.plan.unit_of(unit) for unit, _ in (source, target)]
        source_devices, target_devices = (
            set(unit.stage_devices(stage)) for unit, (_, stage) in zip(units, (source, target), strict=True)
        )
        if source_devices == target_devices:
            continue  # nothing has to move
        for op in (
            PipelineOp("hop", *source, MICROBATCHES - 1, *target),
            PipelineOp("gradient_hop", *target, MICROBATCHES - 1, *source),
        ):
            if op in run.seconds:
                ranks = min(unit.parallelism.dp * unit.parallelism.cp for unit in units)
                yield len(source_devices | target_devices), size / ranks, run.seconds[op]


def norm_line(runs: Sequence[MeasuredRun]) -> LinearFit:
    """Fits global_norm by the number of stages."""
    norm = PipelineOp("global_norm", "", -1)
    return fit_line([(sum(unit.stage_count for unit in run.plan.units), 0.0, run.seconds[norm]) for run in runs])


def fit_line(points: Sequence[Point]) -> LinearFit:
    """Fits `fixed + per_participant * participants + rate * size` by least squares, without negative coefficients.

    It is zero without points.
    """
    if not points:
        return LinearFit(0.0, 0.0, 0.0)
    participants, sizes, seconds = np.array(points, float).T
    columns = np.stack([np.ones_like(participants), participants, sizes], axis=1)
    # A column that does not vary explains nothing, and columns of one magnitude are solved more exactly.
    scale = np.array([1.0, *(np.ptp(column) and np.abs(column).max() for column in (participants, sizes))])
    coefficients, _ = nnls(columns * np.divide(1.0, scale, out=np.zeros(3), where=scale > 0), seconds)
    return LinearFit(*np.divide(coefficients, scale, out=np.zeros(3), where=scale > 0).tolist())
