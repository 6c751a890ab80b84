"""Seconds of the ops that a stage runs once a step: gather, reduction, update.

Where master weights and moments lie in the host's memory, the gather loads the master weights, and the update loads
both and stores them. One transfer follows the other, and nothing else runs meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.cost_model import CostModel, LayerParallelism
from sharding.costs.node_placement import NodePlacement
from sharding.costs.optimizer_memory import MASTER_BYTES
from sharding.costs.stages.stage_parameters import LayersOfStage, module_parameters


class OncePerStep(NamedTuple):
    """Seconds of a stage's ops that run once a step."""

    gather: float
    reduce: float
    update: float


def once_per_step(
    layers: tuple[LayersOfStage, ...],
    pipeline_replicas: int,
    placed: Callable[[LayerParallelism], Sequence[NodePlacement]],
    costs: CostModel,
) -> OncePerStep:
    """The seconds of a stage with these layers.

    Args:
        layers: The layers.
        pipeline_replicas: Pipeline replicas of the unit.
        placed: Where the ranks with the same parameters are, of all but experts' and of experts', given the ranks that
            compute a layer.
        costs: The cost model.
    """
    gather = reduce = update = 0.0
    parallelism = {run.module: run.ranks for run in layers}
    modules = module_parameters(layers, pipeline_replicas)
    for (parameters, trained, _), ranks in zip(modules, parallelism.values(), strict=True):
        same = placed(ranks)
        gather += _total_seconds(costs.gather_weights, parameters, same)
        reduce += _total_seconds(costs.reduce_gradients, trained, same)
        update += _total_seconds(
            lambda size, placement: costs.optimizer_update(size / placement.ranks, placement.ranks), trained, same
        )
        if costs.optimizer.on_host:
            held, updated = (
                sum(size / placement.ranks for size, placement in zip(sizes.tolist(), same, strict=True))
                for sizes in (parameters, trained)
            )
            gather += float(costs.host_transfer(MASTER_BYTES * held))
            update += 2 * float(costs.host_transfer(costs.optimizer.state_bytes(updated, updated)))
    return OncePerStep(gather, reduce, update)


def _total_seconds(
    seconds: Callable[[float, NodePlacement], float],
    parameters: Float[np.ndarray, " 2"],
    placed: Sequence[NodePlacement],
) -> float:
    """Sums the seconds of an op over the parameters of all but experts and of experts, if there are some."""
    return sum(
        (seconds(size, ranks) for size, ranks in zip(parameters.tolist(), placed, strict=True) if size), start=0.0
    )
