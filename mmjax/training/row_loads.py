"""The loads that the rows of a training run bring to each module, by which planners and profiles compute costs.

Planning by measured data (`mmjax.planning.automatic`), profiles and the page of a run use it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from data.packing.global_batch import GlobalBatch
from mmjax.training.config import TrainConfig
from sharding.specs.layers.layer import make_loads
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

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


def _pairs_at_capacity(module: ModuleSpec, length: int) -> float:
    """Pairs of local attention in a row of one item; for images as if all windows were whole."""
    if module.local is None:
        return 0.0
    if module.local.kind == "square":
        return float(length * min(length, module.local.size**2))
    return float(module.local.pairs(float(length)))
