"""DistTrain's disaggregated orchestration (arXiv 2408.04275, section 5): every module on devices of its own.

Tensor-parallel sizes of 1, 2, 4 and 8 that divide a module and a node; data-parallel sizes of the backbone that divide
the batch, one row an instance and microbatch; encoders and generators with fewer instances, so that each takes whole
rows of a microbatch. Modules that fit a device are replicated (tp 1) where that is better.
"""

from sharding.plan import Plan
from sharding.planners.layouts import layout_plan
from sharding.planners.problem import Problem
from sharding.planners.search import search
from sharding.planners.shortage import refusal

REHEARSED = 8


def plans(problem: Problem) -> list[Plan]:
    """The best layouts by DistTrain's objective."""
    layouts = search(problem, REHEARSED)
    if not layouts:
        raise refusal(problem)
    return [layout_plan(problem, layout) for layout in layouts]
