"""The loads that the rows of a training run bring to each module: what its planner and its profile count by."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from data.packing.global_batch import GlobalBatch
from mmjax.training.config import TrainConfig
from sharding.specs.layer import make_loads
from sharding.specs.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph
from sharding.specs.row_load_statistics import RowLoadStatistics

if TYPE_CHECKING:  # it imports jax
    from data.packing.batch_spec import BatchSpec

HostArrays = Mapping[str, Mapping[str, np.ndarray]]


def first_batches(config: TrainConfig, count: int) -> list[GlobalBatch]:
    """The first global batches of a run."""
    from data.packing.pipeline import training_batches  # its import takes seconds, and loads alone do without it

    batches = training_batches(config.data, config.model, config.dataset("train"))
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()


def capacity_row_loads(batch_spec: "BatchSpec", graph: ModuleGraph) -> dict[str, np.ndarray]:
    """Loads [n, 4] of the rows of every module at full capacity: programs compute all of it, padding included."""
    loads = {}
    for module in graph.modules:
        arrays = batch_spec[module.name]
        rows = next(iter(arrays.values())).shape[0]
        length = arrays["segments"].shape[1] if "segments" in arrays else 0
        items = arrays["images"].shape[1] if "images" in arrays else 0
        load = make_loads(length, length**2, items, _pairs_at_capacity(module, length))
        loads[module.name] = np.tile(load, (rows, 1))
    return loads


def batch_statistics(batches: list[GlobalBatch], graph: ModuleGraph) -> RowLoadStatistics:
    """Loads of the rows of some batches as their samples fill them, without padding."""
    loads = [filled_row_loads(batch.arrays, graph) for batch in batches]
    return RowLoadStatistics({name: np.concatenate([batch_loads[name] for batch_loads in loads]) for name in loads[0]})


def filled_row_loads(arrays: HostArrays, graph: ModuleGraph) -> dict[str, np.ndarray]:
    """Loads [n, 4] of the rows of every module as their samples fill them, without padding."""
    return {
        module.name: np.array([_segment_loads(*row, module) for row in _rows_of_segments(arrays[module.name])])
        if "segments" in arrays[module.name]
        else np.array([make_loads(items=int((row > 0).sum())) for row in arrays[module.name]["weights"]])
        for module in graph.modules
    }


def _pairs_at_capacity(module: ModuleSpec, length: int) -> float:
    """Pairs of local attention in a row of one item; of images as if all its windows were whole."""
    if module.local is None:
        return 0.0
    if module.local.kind == "square":
        return float(length * min(length, module.local.size**2))
    return float(module.local.pairs(float(length)))


def _rows_of_segments(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Segments and positions of every row; encoders may have none of the latter."""
    segments = arrays["segments"]
    yield from zip(segments, arrays.get("positions", segments), strict=True)


def _segment_loads(segments: np.ndarray, positions: np.ndarray, module: ModuleSpec) -> np.ndarray:
    """The load of the segments of a row [s]; 0 is padding.

    Class tokens and registers attend as one position each and take whole cells.
    """
    lengths = np.bincount(segments[segments > 0])
    numbers, lengths = np.flatnonzero(lengths), lengths[lengths > 0].astype(float)
    cells = segments.reshape(-1, module.values_per_cell // module.values_per_position)
    pairs, local = 0.0, module.local
    if local is not None and local.kind == "square":
        grids = (1 + positions[segments == number].max(axis=0) for number in numbers)
        pairs = sum(local.pairs_of_grid(int(rows), int(columns)) for rows, columns in grids)
    elif local is not None:
        pairs = float(local.pairs(lengths).sum())
    tokens = (cells > 0).any(axis=1).sum() * cells.shape[1]
    return make_loads(tokens, np.square(lengths).sum(), len(lengths), pairs)
