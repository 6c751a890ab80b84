"""What a training run asks of a planner: the loads that its rows bring to each module."""

from collections.abc import Mapping

import numpy as np

from data.packing.global_batch import GlobalBatch
from data.packing.pipeline import training_batches
from mmjax.training.config import TrainConfig
from sharding.specs.modules import ModuleGraph
from sharding.specs.row_load_statistics import RowLoadStatistics

Arrays = Mapping[str, Mapping[str, np.ndarray]]


def first_batches(config: TrainConfig, count: int) -> list[GlobalBatch]:
    """The first global batches of a run."""
    batches = training_batches(config.data, config.model, config.source("train"))
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()


def capacity_row_loads(arrays: Arrays, graph: ModuleGraph) -> dict[str, np.ndarray]:
    """Loads [n, 3] of the rows as their static shapes have them, full or not: what programs compute."""
    loads = {}
    for module in graph.modules:
        fields = arrays[module.name]
        rows, *_ = next(iter(fields.values())).shape
        length = fields["segments"].shape[1] if "segments" in fields else 0
        items = fields["images"].shape[1] if "images" in fields else 0
        loads[module.name] = np.tile(np.array([length, length**2, items], float), (rows, 1))
    return loads


def batch_statistics(batches: list[GlobalBatch], graph: ModuleGraph) -> RowLoadStatistics:
    """Loads of the rows of some batches as their samples fill them, without padding."""
    rows = [filled_row_loads(batch.arrays, graph) for batch in batches]
    return RowLoadStatistics({name: np.concatenate([of[name] for of in rows]) for name in rows[0]})


def filled_row_loads(arrays: Arrays, graph: ModuleGraph) -> dict[str, np.ndarray]:
    """Loads [n, 3] of the rows as their samples fill them."""
    return {
        module.name: np.array(list(map(_segments, arrays[module.name]["segments"])))
        if "segments" in arrays[module.name]
        else np.array([[0.0, 0.0, (weights > 0).sum()] for weights in arrays[module.name]["weights"]])
        for module in graph.modules
    }


def _segments(row: np.ndarray) -> tuple[float, float, float]:
    """Tokens, sum of squared lengths, and number of the segments of a row; 0 is padding."""
    lengths = np.bincount(row[row > 0])
    lengths = lengths[lengths > 0]
    return float(lengths.sum()), float((lengths.astype(float) ** 2).sum()), float(len(lengths))
