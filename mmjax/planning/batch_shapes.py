"""Shapes of the global batches of a planning problem: of a training run's data, or of described rows."""

import math
from typing import TYPE_CHECKING

import numpy as np

from configs.workloads import Workload
from data.data_config import RowCapacity
from data.packing.batch_spec import BatchSpec, batch_spec_of_rows, global_batch_spec
from sharding.costs.own_rows import item_values
from sharding.planners.problem import PlanningProblem
from sharding.specs.layers.layer import LoadColumn

if TYPE_CHECKING:
    from mmjax.training.config import TrainConfig

_BLOCK = 64
"""Positions of which a described row of an encoder has a multiple."""


def batch_shapes(config: "Workload | TrainConfig", problem: PlanningProblem) -> BatchSpec:
    """Shapes of a global batch of a problem.

    The rows of described data hold what the fullest drawn row does of each encoder's inputs and target images.
    """
    if not isinstance(config, Workload):
        return global_batch_spec(config.data, config.model).with_rows(problem.rows).arrays
    loads = problem.data.loads
    lengths = {encoder.field: _length(problem, encoder.name) for encoder in config.model.encoders}
    images = (loads[generator.name][:, LoadColumn.ITEMS].max() for generator in config.model.generators)
    samples = max(1, math.ceil(loads[config.model.backbone.name][:, LoadColumn.ITEMS].max()))
    row = RowCapacity(
        tokens=config.data.row_tokens, lengths=lengths, images=math.ceil(max(images, default=0)), samples=samples
    )
    return batch_spec_of_rows(row, config.model, problem.rows).arrays


def _length(problem: PlanningProblem, name: str) -> int:
    """Values of an encoder's inputs in the fullest drawn row, rounded up to whole blocks and token slots."""
    module = problem.graph[name]
    multiple = math.lcm(module.values_per_slot, _BLOCK * module.values_per_position)
    most = float(np.max(item_values(problem.data.loads[name], module)))
    return multiple * max(1, math.ceil(most / multiple - 1e-6))
