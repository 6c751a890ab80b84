"""A lower bound of the step of every plan: the work of all modules, divided evenly among all devices."""

import numpy as np

from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.cost_model import LayerParallelism
from sharding.planners.problem import PlanningProblem
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.specs.layers.layer import RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec


def least_work_seconds(problem: PlanningProblem) -> float:
    """Seconds that no plan's step takes less than, whichever devices its modules are on.

        sum_module(device-seconds of its layers) / devices

    Device-seconds are what kernels take for all rows of the batch at once, where they are most efficient, with the
    tensor-parallel size and the recomputation that take least. Collectives, hops, updates, and the filling of pipelines
    come on top.
    """
    device_seconds = sum(_device_seconds(problem, module) for module in problem.graph.modules)
    return device_seconds / problem.devices


def _device_seconds(problem: PlanningProblem, module: ModuleSpec) -> float:
    sizes = {*problem.module_tables[module.name].tensor_sizes}
    if isinstance(problem.costs, AnalyticCostModel):
        sizes.add(1)  # least of all, whether a planner may choose it; a profile may have no times of it
    return min(_kernel_seconds(problem, module, tp, policy) for tp in sizes for policy in problem.recompute_choices)


def _kernel_seconds(problem: PlanningProblem, module: ModuleSpec, tp: int, recompute: RecomputePolicy) -> float:
    """Seconds of all devices together, of one replica that computes the whole batch."""
    ranks = LayerParallelism(tp=tp, cp=problem.fixed_ranks_of(module.name).cp, collectives="all_reduce")
    required, seconds = RequiredGradients(problem.graph, problem.trained_parts), 0.0
    for layer, count, gradients in required.of_layers(module.name, 0, module.layer_count):
        costs = problem.sampled_costs.layer(module.name, layer.name, count, gradients, ranks, recompute, microbatches=1)
        seconds += count * float(np.sum(costs.forward.compute + costs.backward.compute))
    return tp * ranks.cp * seconds
