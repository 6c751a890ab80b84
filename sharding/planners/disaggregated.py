"""Every module on devices of its own: DistTrain's disaggregated orchestration, and its strawman by FLOPs.

The policy `disaggregated` (arXiv 2408.04275, section 5) chooses tensor-parallel sizes that divide a module and a node,
and data-parallel sizes of the backbone that divide the batch, with one row per replica and microbatch; encoders and
generators have fewer replicas, so that each takes whole rows of a microbatch. Modules that fit a device are replicated
(tp 1) where that is better. The policy `ratio` (section 5.1) does the same within a number of devices for each module
in proportion to its FLOPs.
"""

from collections.abc import Mapping

from sharding.costs.cost_model import useful_flops
from sharding.planners.infeasible import infeasible_error
from sharding.planners.layout_search import DisjointLayout, economical_layouts, search_layouts
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.schedule_fields import scheduled_plan
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import RequiredGradients
from sharding.plans.unit_plan import PlanError

_SIMULATED, _SIMULATED_BY_FLOPS = 8, 4  # how many of the best layouts are simulated


def plans(problem: PlanningProblem) -> list[Plan]:
    """The best layouts by DistTrain's objective."""
    layouts = search_layouts(problem, _SIMULATED)
    if not layouts:
        raise infeasible_error(problem)
    return _plans_of(problem, layouts)


def flops_proportional_plans(problem: PlanningProblem) -> list[Plan]:
    """The best layouts in which no module has more devices than its share of the FLOPs."""
    shares = flops_shares(problem)
    max_devices = {name: max(1, int(share * problem.devices)) for name, share in shares.items()}
    layouts = search_layouts(problem, _SIMULATED_BY_FLOPS, max_devices)
    if not layouts:
        if not search_layouts(problem):
            raise infeasible_error(problem)
        counts = ", ".join(f"{name} {count}" for name, count in max_devices.items())
        raise PlanError(f"by their FLOPs the units get {counts} devices, on which they do not all fit")
    return _plans_of(problem, layouts, max_devices)


def _plans_of(
    problem: PlanningProblem, layouts: list[DisjointLayout], max_devices: Mapping[str, int] | None = None
) -> list[Plan]:
    """The plans of the best layouts, and of those that do with fewer device-seconds within the slack of the step."""
    distinct: list[DisjointLayout] = []
    for layout in (*layouts, *economical_layouts(problem, layouts, STEP_SLACK, max_devices)):
        if layout not in distinct:
            distinct.append(layout)
    return [scheduled_plan(problem, layout) for layout in distinct]


def flops_shares(problem: PlanningProblem) -> dict[str, float]:
    """Every module's share of the useful FLOPs of a step."""
    required = RequiredGradients(problem.graph, problem.trained_parts)
    flops = {}
    for module in problem.graph.modules:
        load = problem.data.mean_load(module.name)
        layers = required.of_layers(module.name, 0, module.layer_count)
        flops[module.name] = sum(
            count * float(useful_flops(layer, load, gradients)) for layer, count, gradients in layers
        )
    total = sum(flops.values())
    return {name: module_flops / total for name, module_flops in flops.items()}
