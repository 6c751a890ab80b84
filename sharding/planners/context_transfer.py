"""Chooses for each unit of a plan how context-parallel ranks reach each other's positions, by the simulated step.

`policies/auto.py` applies the choice to the best plan of a policy.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

from sharding.costs.profiled import ProfileError
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_checks import check_unit
from sharding.plans.unit_plan import UnitPlan
from sharding.simulation.timeline import Timeline
from sharding.specs.modules import ModuleGraph


def with_best_context_transfers(problem: PlanningProblem, plan: Plan, timeline: Timeline) -> tuple[Plan, Timeline]:
    """The plan with `all_to_all` instead of `ring` in the units whose heads allow it, where its step is shorter.

    A plan of which a profile has no times keeps its ring.

    Args:
        problem: The problem.
        plan: A plan by a ring.
        timeline: Its simulated step.
    """
    for index in range(len(plan.units)):
        for unit in _by_heads(plan.units[index], problem.graph, problem.devices):
            changed = dataclasses.replace(plan, units=(*plan.units[:index], unit, *plan.units[index + 1 :]))
            try:
                simulated = problem.simulate(changed)
            except ProfileError:
                continue
            if simulated.step < timeline.step and problem.memory_fraction(simulated) <= 1:
                plan, timeline = changed, simulated
    return plan, timeline


def _by_heads(unit: UnitPlan, graph: ModuleGraph, devices: int) -> Iterator[UnitPlan]:
    """The unit whose ranks trade positions for heads, if they divide these."""
    if unit.parallelism.cp == 1:
        return
    changed = unit.with_parallelism(context_transfer="all_to_all")
    with contextlib.suppress(PlanError):
        check_unit(changed, graph, devices)
        yield changed
