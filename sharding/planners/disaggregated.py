"""DistTrain's disaggregated orchestration (arXiv 2408.04275, section 5): every module on devices of its own.

Tensor-parallel sizes of 1, 2, 4 and 8 that divide a module and a node; data-parallel sizes of the backbone that divide
the batch, one row an instance and microbatch; encoders and generators with fewer instances, so that each takes whole
rows of a microbatch. Modules that fit a device are replicated (tp 1) where that is better.
"""

from sharding.planners.infeasible import infeasible_error
from sharding.planners.layout_search import search_layouts
from sharding.planners.placement import plan_of_layout
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan

MAX_SIMULATED = 8


def plans(problem: PlanningProblem) -> list[Plan]:
    """The best layouts by DistTrain's objective."""
    layouts = search_layouts(problem, MAX_SIMULATED)
    if not layouts:
        raise infeasible_error(problem)
    return [plan_of_layout(problem, layout) for layout in layouts]
