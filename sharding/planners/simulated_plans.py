"""What policies have in common: each turns a problem into plans, and the best of them is found by rehearsal."""

import dataclasses
from collections.abc import Callable, Sequence

from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import PlanError
from sharding.simulation.timeline import Timeline

PlanningPolicy = Callable[[PlanningProblem], list[Plan]]
"""Plans worth rehearsing; raises PlanError with the reason where there are none."""

TIE = 0.001
"""Steps that differ by less than this share are equal; the fewer devices win."""


@dataclasses.dataclass(frozen=True, eq=False)
class SimulatedPlan:
    """A plan and its simulated step."""

    plan: Plan
    timeline: Timeline


def best_simulated(problem: PlanningProblem, plans: Sequence[Plan]) -> SimulatedPlan:
    """The plan with the shortest simulated step of those that fit the memory; raises PlanError if none does."""
    found = [SimulatedPlan(plan, problem.simulate(plan)) for plan in plans]
    fits = [each for each in found if problem.memory_fraction(each.timeline) <= 1]
    if not fits:
        raise _too_full(problem, min(found, key=lambda each: problem.memory_fraction(each.timeline)))
    return shortest_step(fits)


def shortest_step(found: Sequence[SimulatedPlan]) -> SimulatedPlan:
    """The shortest step; of equal ones that on the fewest devices."""
    least = min(each.timeline.step for each in found)
    equal = [each for each in found if each.timeline.step <= least * (1 + TIE)]
    return min(equal, key=lambda each: (each.plan.device_count, each.timeline.step))


def _too_full(problem: PlanningProblem, nearest: SimulatedPlan) -> PlanError:
    lane = max(nearest.timeline.lanes, key=nearest.timeline.lane_peak_memory)
    need, memory = nearest.timeline.lane_peak_memory(lane), problem.cluster.memory
    return PlanError(
        f"unit {lane.rank[0]}: with the rows that were drawn, its stage {lane.rank[1]} needs {need / 1e9:.1f} GB on "
        f"each device, {(need - memory) / 1e9:.1f} GB more than the {memory / 1e9:.0f} GB of {problem.cluster.name} "
        f"on the best layout for {problem.devices} devices; give it more devices or shorter rows"
    )
