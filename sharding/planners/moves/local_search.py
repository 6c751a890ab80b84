"""Shortens a plan's simulated step by single changes, as long as one helps.

Every kind of change is tried in turn on the plan as it is by then. A change is taken if the plan with it fits, can be
trained, and its simulated step is shorter by `LEAST_GAIN`; one that takes more device-seconds has to shorten it by
`STEP_SLACK`. The search ends when no change of any kind helps, or when it has simulated `MOST_OPS` ops.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from sharding.costs.profiled import ProfileError
from sharding.costs.step_costs import StepWork
from sharding.planners.moves.change import Change, changed_plan
from sharding.planners.moves.devices import device_changes, microbatch_changes
from sharding.planners.moves.order import order_changes
from sharding.planners.moves.recomputation import recompute_changes
from sharding.planners.moves.sizes import size_changes
from sharding.planners.moves.stage_layers import layer_changes
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.simulated_plan import ImprovedPlan
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.recently_used import RecentlyUsed
from sharding.schedules.ops import ScheduleError
from sharding.simulation.timeline import Timeline

LEAST_GAIN = 0.002
"""Share by which a change has to shorten the step."""

MOST_OPS = 500_000
"""Forwards and backwards that are simulated from one plan on, at most.

Each counts once for every `_REPLICAS` replicas, and once for every order that is made of a colocated plan's ops.
"""

_FAR = 0.05
"""Share by which a plan may take longer than the shortest when its changes begin."""

_ORDERS = 8  # of a colocated plan's ops, of which the shortest is simulated
_REPLICAS = 64  # of which the simulation of an op takes about as long as of one

ChangeKind = Callable[[PlanningProblem, Plan], Iterator[Change]]

CHANGE_KINDS: tuple[ChangeKind, ...] = (
    device_changes,
    order_changes,
    size_changes,
    microbatch_changes,
    recompute_changes,
    layer_changes,
)
"""All kinds of changes, in the order in which they are tried."""


def improve_plans(
    problem: PlanningProblem,
    starts: Sequence[ImprovedPlan],
    callback: Callable[[int, ImprovedPlan], None] = lambda number, improved: None,
) -> list[ImprovedPlan]:
    """The plans after all changes that help, of the ones that stay among the shortest.

    All plans go through a round of changes in turn, the shortest first. One that takes longer than the shortest by
    `_FAR` before its first round, or by `STEP_SLACK` before another, is not changed further: changes of later rounds
    are small.

    Args:
        problem: The problem that the plans solve.
        starts: Plans that fit and can be trained, with their simulated steps.
        callback: Called with the number of a start and the plan from it after each change.
    """
    plans = list(starts)
    numbers = sorted(range(len(starts)), key=lambda number: starts[number].timeline.step)
    rounds = {
        number: _LocalSearch(problem, functools.partial(callback, number)).rounds(starts[number]) for number in numbers
    }
    far = _FAR
    while rounds:
        for number in list(rounds):
            shortest = min(plan.timeline.step for plan in plans)
            is_near = plans[number].timeline.step <= shortest * (1 + far)
            improved = next(rounds[number], None) if is_near else None
            if improved is None:
                del rounds[number]
            else:
                plans[number] = improved
        far = STEP_SLACK
    return plans


def improve_plan(problem: PlanningProblem, plan: Plan, timeline: Timeline) -> ImprovedPlan:
    """One plan after all changes that help; the same plan if none does."""
    return improve_plans(problem, [ImprovedPlan(plan, timeline)])[0]


class _LocalSearch:
    """The search from one plan on; changed plans are simulated once."""

    def __init__(self, problem: PlanningProblem, callback: Callable[[ImprovedPlan], None]) -> None:
        self._problem, self._callback, self._tried, self._ops = problem, callback, set(), 0
        self._work = RecentlyUsed[StepWork](1)  # of the plan that is changed

    def rounds(self, best: ImprovedPlan) -> Iterator[ImprovedPlan]:
        """The plan after each round through all kinds of changes, until none of them helps."""
        without_gain = 0  # kinds of changes in a row
        while without_gain < len(CHANGE_KINDS):
            for kind in CHANGE_KINDS:
                improved = self._improve_by(kind, best)
                without_gain = 0 if improved is not best else without_gain + 1
                best = improved
                if without_gain == len(CHANGE_KINDS) or self._ops > MOST_OPS:
                    yield best
                    return
            yield best

    def _improve_by(self, kind: ChangeKind, best: ImprovedPlan) -> ImprovedPlan:
        """The plan after one round of changes of a kind: after each that helps, the round goes on from the new plan."""
        place = 0
        while True:
            for number, change in enumerate(itertools.islice(kind(self._problem, best.plan), place, None), place):
                if self._ops > MOST_OPS:
                    return best
                if improved := self._changed(change, best):
                    best, place = improved, number + 1
                    self._callback(best)
                    break
            else:
                return best

    def _changed(self, change: Change, best: ImprovedPlan) -> ImprovedPlan | None:
        """The plan with a change, if it is better."""
        with contextlib.suppress(PlanError, ScheduleError, ProfileError):  # a registered schedule may refuse it
            plan = changed_plan(self._problem, best.plan, change)
            if plan not in self._tried and (timeline := self._shorter_step(plan, change, best)):
                return ImprovedPlan(plan, timeline, (*best.changes, change.words))
        return None

    def _shorter_step(self, plan: Plan, change: Change, best: ImprovedPlan) -> Timeline | None:
        """The simulated step of a changed plan that is better than the best; else None."""
        longest = best.timeline.step * (1 - LEAST_GAIN)
        if plan.device_count * longest > best.device_seconds:
            longest = max(best.device_seconds / plan.device_count, best.timeline.step * (1 - STEP_SLACK))
        self._tried.add(plan)
        work = self._problem.step_work(plan)
        before = self._work.get(best.plan, lambda: self._problem.step_work(best.plan))
        if change.recomputes_only and not _is_ordered_by_seconds(plan) and not _takes_less(work, before):
            return None
        if self._problem.least_step_seconds(plan, work) > longest:
            return None
        self._ops += _counted_ops(plan)
        timeline = self._problem.simulate(plan)
        if timeline.step > longest or self._problem.memory_fraction(timeline) > 1:
            return None
        return timeline


def _is_ordered_by_seconds(plan: Plan) -> bool:
    """Whether the order of ops depends on their seconds, so that longer ones may make a shorter step."""
    return any(unit.schedule_hints.forward_seconds for unit in plan.units)


def _counted_ops(plan: Plan) -> int:
    """The forwards and backwards of a plan as `MOST_OPS` counts them."""
    stages = sum(unit.stage_count * -(-unit.parallelism.dp // _REPLICAS) for unit in plan.units)
    return 2 * plan.microbatches * stages * (_ORDERS if plan.schedule == "colocated" else 1)


def _takes_less(work: StepWork, before: StepWork) -> bool:
    """Whether any stage computes less than before, on any of its replicas."""
    return any(
        (stage.forward + stage.backward < before.stages[name].forward + before.stages[name].backward).any()
        for name, stage in work.stages.items()
    )
