"""Devices in proportion to the modules' FLOPs (DistTrain's strawman, arXiv 2408.04275, section 5.1)."""

from sharding.costs.cost_model import useful_flops
from sharding.planners.infeasible import infeasible_error
from sharding.planners.layout_search import search_layouts
from sharding.planners.placement import plan_of_layout
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import RequiredGradients
from sharding.plans.unit_plan import PlanError

MAX_SIMULATED = 4


def plans(problem: PlanningProblem) -> list[Plan]:
    """The best layouts with no more devices for a module than its share of the FLOPs."""
    shares = flops_shares(problem)
    limits = {name: max(1, int(share * problem.devices)) for name, share in shares.items()}
    layouts = search_layouts(problem, MAX_SIMULATED, limits)
    if not layouts:
        if not search_layouts(problem):
            raise infeasible_error(problem)
        given = ", ".join(f"{name} {count}" for name, count in limits.items())
        raise PlanError(f"by their FLOPs the units get {given} devices, on which they do not all fit")
    return [plan_of_layout(problem, layout) for layout in layouts]


def flops_shares(problem: PlanningProblem) -> dict[str, float]:
    """Every module's share of the useful FLOPs of a step."""
    turns = RequiredGradients(problem.graph, problem.trained_parts)
    flops = {}
    for module in problem.graph.modules:
        load = problem.data.mean_load(module.name)
        layers = turns.of_layers(module.name, 0, module.layer_count)
        flops[module.name] = sum(count * float(useful_flops(layer, load, part)) for layer, count, part in layers)
    total = sum(flops.values())
    return {name: work / total for name, work in flops.items()}
