"""A layout as Alpa searches it (arXiv 2201.12023), as far as the costs can express one.

For each number of pipeline stages, tensor ranks and rows of a microbatch, the chain of all layers is divided so that
the slowest stage is as fast as possible, and the shortest simulated step that fits is taken.

What differs from Alpa: all stages have one (dp, tp), while each of Alpa's has a submesh of its own; tensor ranks
all-reduce around pairs of split matmuls, while Alpa chooses a sharding for each operator by an integer program; layers
recompute the least that fits, while Alpa's recompute from its layer boundaries; the optimizer's state is divided over
replicas. Its kernels, compilation and the dispatch of its runtime are not modelled: the kernels are the same as the
other systems'. So this is what its space of plans allows at least, and not how fast the program ran.
"""

import dataclasses
from collections.abc import Iterator

from sharding.planners.chain_problem import ChainProblem
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.planners.stages.chain_stages import recomputed_stages
from sharding.planners.stages.partition_baselines import by_virtual_stages
from sharding.plans.plan_error import PlanError


def simulate_alpa(problem: PlanningProblem) -> SimulatedPlan:
    """The shortest step of all layouts.

    Raises:
        PlanError: None fits, or the modules are no chain.
    """
    best = min(_simulated(problem), key=lambda simulated: simulated.timeline.step, default=None)
    if best is None:
        raise PlanError(f"no layout of one chain fits {problem.devices} devices; use more")
    return best


def _simulated(problem: PlanningProblem) -> Iterator[SimulatedPlan]:
    chain = ChainProblem(problem)
    for candidate in chain.sizes.layouts(problem.devices):
        layout = dataclasses.replace(candidate, collectives="all_reduce")
        layers = chain.layers(layout, extra_microbatches=0)
        counts = by_virtual_stages(layers, layout.pp)
        if counts is None:
            continue
        stages = recomputed_stages(layers, layout, counts, problem.cluster.usable_memory)
        if stages:
            plan = stages.plan(layers, layout)
            yield SimulatedPlan(plan, problem.simulate(plan))
