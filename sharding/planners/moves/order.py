"""Changes of the order in which ops run: microbatches in flight, and the schedule."""

from collections.abc import Iterator

from sharding.planners.moves.change import Change, UnitChange
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

_MORE = (1, 2, 4, -1, -2)  # microbatches in flight


def order_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """More and fewer microbatches in flight, of one unit or of all together, and other schedules."""
    for unit in plan.units:
        held = unit.schedule_hints.extra_microbatches
        for extra in sorted({held + more for more in _MORE} | {2 * held, 0} - {held}):
            if 0 <= extra < plan.microbatches * unit.parallelism.chunks and extra != held:
                words = f"{unit.name}: extra_microbatches {held} -> {extra}"
                yield Change(words, {unit.name: UnitChange(extra_microbatches=extra)})
    for more in _MORE:
        if all(_extra(unit) + more >= 0 for unit in plan.units):
            together = {unit.name: UnitChange(extra_microbatches=_extra(unit) + more) for unit in plan.units}
            yield Change(f"all units: extra_microbatches {more:+}", together)
    for schedule in _schedules(plan):
        yield Change(f"schedule {plan.schedule} -> {schedule}", schedule=schedule)


def _extra(unit: UnitPlan) -> int:
    return unit.schedule_hints.extra_microbatches


def _schedules(plan: Plan) -> tuple[str, ...]:
    """Other schedules that a plan of these chunks can have."""
    has_chunks = any(unit.parallelism.chunks > 1 for unit in plan.units)
    schedules = ("interleaved", "colocated") if has_chunks else ("1f1b", "zb-h1", "colocated")
    return tuple(schedule for schedule in schedules if schedule != plan.schedule)
