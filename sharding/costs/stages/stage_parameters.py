"""The layers of a stage with the ranks that compute them, and the parameters of its modules."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.cost_model import LayerParallelism
from sharding.plans.resolved.trained_parts import Gradient
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import LayerSpec, RecomputePolicy


def module_parallelism(unit: UnitPlan, module: str) -> LayerParallelism:
    """The ranks that compute a module of a unit."""
    tp, dp = unit.tensor_ranks_of(module), unit.replicas_of(module)
    return LayerParallelism(
        tp=tp,
        cp=unit.parallelism.cp,
        context_transfer=unit.parallelism.context_transfer,
        ep=unit.parallelism.ep,
        expert_transfer=unit.parallelism.expert_transfer,
        dp=dp,
        fsdp=unit.parallelism.fsdp,
        collectives=unit.parallelism.collectives,
    )


class LayersOfStage(NamedTuple):
    """Equal consecutive layers of a stage that have one recomputation policy.

    Attributes:
        module: Their module.
        layer: One of them.
        count: How many there are.
        gradients: The gradients that their backward computes.
        recompute: Their recomputation policy.
        ranks: The ranks that compute each.
    """

    module: str
    layer: LayerSpec
    count: int
    gradients: tuple[Gradient, ...]
    recompute: RecomputePolicy
    ranks: LayerParallelism


def layer_key(layers: tuple[LayersOfStage, ...]) -> tuple:
    """Returns a key that is equal for stages with equal layers."""
    return tuple((run.module, run.layer.name, run.count, run.gradients, run.recompute, run.ranks) for run in layers)


class ModuleParameters(NamedTuple):
    """Parameters of a module that a device holds; all arrays are [all but experts', experts'].

    Attributes:
        total: Elements.
        trained: Elements of the parameters that train.
        ranks: How many ranks have the same parameters.
    """

    total: Float[np.ndarray, " 2"]
    trained: Float[np.ndarray, " 2"]
    ranks: Int[np.ndarray, " 2"]


def module_parameters(layers: tuple[LayersOfStage, ...], pipeline_replicas: int) -> list[ModuleParameters]:
    """The parameters of each module of a stage, of whose unit there are so many pipeline replicas."""
    modules = []
    for module, ranks in {run.module: run.ranks for run in layers}.items():
        sizes = np.zeros((2, 2))
        for run in layers:
            if run.module == module:
                per_rank = [
                    run.layer.parameters_per_rank(ranks.tp),
                    run.layer.expert_parameters_per_rank(ranks.tp, ranks.ep),
                ]
                sizes += run.count * np.outer([1.0, "wgrad" in run.gradients], per_rank)
        divided = np.array([1, ranks.ep]) if ranks.fsdp == 1 else np.array([ranks.fsdp, ranks.fsdp])
        shards = np.array([ranks.fsdp, max(ranks.fsdp // ranks.ep, 1)])
        modules.append(
            ModuleParameters(sizes[0] / shards, sizes[1] / shards, pipeline_replicas * ranks.dp // divided * ranks.cp)
        )
    return modules
