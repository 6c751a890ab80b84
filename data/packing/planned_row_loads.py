"""Loads that rows bring to each module, from the planned sizes of their samples, for planning and reordering."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from data.packing.pipeline import BatchPipeline
from data.packing.rows.row_planner import PlannerState
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.specs.layers.layer import make_loads
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

RowLoads = dict[str, Float[np.ndarray, "n 4"]]
"""By module, the loads of every row (`sharding.specs.layers.layer.LoadColumn`)."""


def planned_rows(pipeline: BatchPipeline, count: int) -> list[list[SampleSizes]]:
    """Sizes of the samples of the first rows of a pipeline, for which nothing is decoded.

    Raises:
        DataError: As of `data.packing.rows.row_planner.RowPlanner.steps`.
    """
    return list(itertools.islice(_rows(pipeline), count))


def _rows(pipeline: BatchPipeline) -> Iterator[list[SampleSizes]]:
    for plan in pipeline.steps(PlannerState()):
        yield from ([plan.sizes[sample_id] for sample_id in row] for row in plan.rows)


def planned_row_loads(
    rows: Sequence[Sequence[SampleSizes]], sample_format: SampleFormat, graph: ModuleGraph
) -> RowLoads:
    """Loads of rows whose samples have these sizes, without padding.

    Attention in windows of an image is counted as if the image were square; everything else is exact.
    """
    backbone = graph.backbone
    loads = {
        backbone.name: make_loads(
            _row_sums(rows, "tokens"),
            _row_sums(rows, "token_squares"),
            np.array([len(row) for row in rows], float),
            _local_pairs(backbone, ([sizes.tokens for sizes in row] for row in rows)),
        )
    }
    for field, encoder in sample_format.encoder_formats.items():
        attended = [
            [encoder.attended_positions(length) for sizes in row for length in sizes.items[field]] for row in rows
        ]
        loads[encoder.module] = make_loads(
            np.array([sum(sizes.lengths[field] for sizes in row) for row in rows]) / encoder.values_per_position,
            np.array([np.square(np.array(lengths, float)).sum() for lengths in attended]),
            np.array([len(lengths) for lengths in attended], float),
            _local_pairs(graph[encoder.module], attended),
        )
    if sample_format.target_images:
        loads[sample_format.target_images.module] = make_loads(items=_row_sums(rows, "images"))
    return loads


def _row_sums(rows: Sequence[Sequence[SampleSizes]], name: str) -> Float[np.ndarray, " n"]:
    return np.array([sum(getattr(sizes, name) for sizes in row) for row in rows], float)


def _local_pairs(module: ModuleSpec, lengths: Iterable[Sequence[int]]) -> Float[np.ndarray, " n"]:
    """Pairs of each row's local attention, from the lengths of its items; zeros for a module without it."""
    local = module.local
    return np.array([local.pairs(np.array(row_lengths, float)).sum() if local else 0.0 for row_lengths in lengths])
