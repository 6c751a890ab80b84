"""Shortens a plan's simulated step by single changes, as long as one helps.

Every kind of change is tried in turn on the plan as it is by then. A change is taken if the plan with it fits, can be
trained, and its simulated step is shorter by `LEAST_GAIN`; one that takes more device-seconds has to shorten it by
`STEP_SLACK`. The search ends when no change of any kind helps, or when it has simulated `MOST_OPS` ops.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sharding.costs.profiled import ProfileError
from sharding.planners.moves.change import Change, changed_plan
from sharding.planners.moves.devices import device_changes, microbatch_changes
from sharding.planners.moves.order import order_changes
from sharding.planners.moves.recomputation import recompute_changes
from sharding.planners.moves.sizes import size_changes
from sharding.planners.moves.stage_layers import layer_changes
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.simulation.timeline import Timeline

LEAST_GAIN = 0.002
"""Share by which a change has to shorten the step."""

MOST_OPS = 500_000
"""Forwards and backwards that are simulated from one plan on, at most."""

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


class ImprovedPlan(NamedTuple):
    """A plan that was changed.

    Attributes:
        plan: The plan.
        timeline: Its simulated step.
        changes: What was changed, in words, in the order of the changes.
    """

    plan: Plan
    timeline: Timeline
    changes: tuple[str, ...] = ()

    @property
    def device_seconds(self) -> float:
        """Devices times the seconds of its step."""
        return self.plan.device_count * self.timeline.step


def improve_plan(problem: PlanningProblem, plan: Plan, timeline: Timeline) -> ImprovedPlan:
    """The plan after all changes that help; the same plan if none does.

    Args:
        problem: The problem that the plan solves.
        plan: A plan that fits and can be trained.
        timeline: Its simulated step.
    """
    return _LocalSearch(problem).improve(ImprovedPlan(plan, timeline))


class _LocalSearch:
    """The search from one plan on; changed plans are simulated once."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem, self._tried, self._ops = problem, set(), 0

    def improve(self, best: ImprovedPlan) -> ImprovedPlan:
        """The plan after all changes that help."""
        without_gain = 0  # kinds of changes in a row
        while without_gain < len(CHANGE_KINDS):
            for kind in CHANGE_KINDS:
                improved = self._improve_by(kind, best)
                without_gain = 0 if improved is not best else without_gain + 1
                best = improved
                if without_gain == len(CHANGE_KINDS) or self._ops > MOST_OPS:
                    return best
        return best

    def _improve_by(self, kind: ChangeKind, best: ImprovedPlan) -> ImprovedPlan:
        """The plan after changes of one kind, each on the plan as it was before the kind's first."""
        while True:
            improved = next((found for found in self._better(kind, best)), None)
            if improved is None or self._ops > MOST_OPS:
                return improved or best
            best = improved

    def _better(self, kind: ChangeKind, best: ImprovedPlan) -> Iterator[ImprovedPlan]:
        """Plans with a change of a kind that are better."""
        for change in kind(self._problem, best.plan):
            if self._ops > MOST_OPS:
                return
            with contextlib.suppress(PlanError, ProfileError):
                plan = changed_plan(self._problem, best.plan, change)
                if plan not in self._tried and (timeline := self._shorter_step(plan, best)):
                    yield ImprovedPlan(plan, timeline, (*best.changes, change.words))

    def _shorter_step(self, plan: Plan, best: ImprovedPlan) -> Timeline | None:
        """The simulated step of a plan that is better than the best; else None."""
        gain = LEAST_GAIN
        longest = best.timeline.step * (1 - gain)
        if plan.device_count * longest > best.device_seconds:
            longest = max(best.device_seconds / plan.device_count, best.timeline.step * (1 - STEP_SLACK))
        self._tried.add(plan)
        if self._problem.least_step_seconds(plan) > longest:
            return None
        self._ops += 2 * plan.microbatches * sum(unit.stage_count for unit in plan.units)
        timeline = self._problem.simulate(plan)
        if timeline.step > longest or self._problem.memory_fraction(timeline) > 1:
            return None
        return timeline
