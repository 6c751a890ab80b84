"""What policies have in common: each turns a problem into plans, and the best of them is found by rehearsal."""

import dataclasses
from collections.abc import Callable, Sequence

from sharding.plan import Plan, PlanError
from sharding.planners.problem import Problem
from sharding.timeline import Timeline

Policy = Callable[[Problem], list[Plan]]
"""Plans worth rehearsing; raises PlanError with the reason where there are none."""

TIE = 0.001
"""Steps that differ by less than this share are equal; the fewer devices win."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rehearsed:
    """A plan and its simulated step."""

    plan: Plan
    timeline: Timeline


def rehearsed_best(problem: Problem, plans: Sequence[Plan]) -> Rehearsed:
    """The plan with the shortest simulated step of those that fit the memory; raises PlanError if none does."""
    found = [Rehearsed(plan, problem.rehearse(plan)) for plan in plans]
    fits = [each for each in found if problem.fullness(each.timeline) <= 1]
    if not fits:
        raise _too_full(problem, min(found, key=lambda each: problem.fullness(each.timeline)))
    return shortest(fits)


def shortest(found: Sequence[Rehearsed]) -> Rehearsed:
    """The shortest step; of equal ones that on the fewest devices."""
    least = min(each.timeline.step for each in found)
    equal = [each for each in found if each.timeline.step <= least * (1 + TIE)]
    return min(equal, key=lambda each: (each.plan.device_count, each.timeline.step))


def _too_full(problem: Problem, nearest: Rehearsed) -> PlanError:
    lane = max(nearest.timeline.lanes, key=nearest.timeline.memory_of)
    need, memory = nearest.timeline.memory_of(lane), problem.cluster.memory
    return PlanError(
        f"unit {lane.place[0]}: with the rows that were drawn, its stage {lane.place[1]} needs {need / 1e9:.1f} GB on "
        f"each device, {(need - memory) / 1e9:.1f} GB more than the {memory / 1e9:.0f} GB of {problem.cluster.name} "
        f"on the best layout for {problem.devices} devices; give it more devices or shorter rows"
    )
