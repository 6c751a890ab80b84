"""The plans of several policies for one problem side by side, and the choice among them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sharding.frames import make_frame
from sharding.html import numbers
from sharding.html.elements import Html, element, join, table
from sharding.planners.policies import disaggregated
from sharding.planners.policies.auto import (
    AUTO,
    LOCAL_SEARCH,
    PLANNING_POLICIES,
    PolicyResult,
    ResultCallback,
    all_results,
    best_result,
    run_policy,
)
from sharding.planners.policies.best_plan import best_of_policy
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.planners.work_bound import least_work_seconds
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.simulation.pages.html_page import html_fragment
from sharding.simulation.pages.html_tables import range_in_figures
from sharding.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pandas

SHARES = (0.75, 0.5)
"""Shares of the chosen plan's devices on which a comparison also plans."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PolicyComparison:
    """The results of policies for a problem. In a notebook it shows a table, with the chosen plan's timeline.

    Attributes:
        problem: The problem.
        results: Result of every policy.
        choice: The best of them (`best_result`).
        bound: Seconds that no plan's step takes less than (`least_work_seconds`).
        stopped: Whether it was stopped before all policies were compared.
    """

    problem: PlanningProblem
    results: tuple[PolicyResult, ...]
    choice: PolicyResult
    bound: float
    stopped: bool = False

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.choice.plan

    @property
    def timeline(self) -> Timeline:
        """The simulated step of the chosen plan."""
        return self.choice.timeline

    def above_bound(self, result: PolicyResult) -> float | None:
        """By which share of `bound` a policy's step is longer; None where it has no plan."""
        return result.timeline.step / self.bound - 1 if result.simulated else None

    @functools.cached_property
    def on_fewer_devices(self) -> tuple[SimulatedPlan, ...]:
        """The best plans on shares of the chosen plan's devices; none where `disaggregated` was not compared."""
        if self.stopped or "disaggregated" not in {result.policy for result in self.results}:
            return ()
        return tuple(plans_on_fewer_devices(self.problem, self.plan.device_count))

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{result.policy} {numbers.seconds(result.timeline.step)}" for result in self.results if result.simulated
        )
        range_ = range_in_figures(self.timeline.step_range)
        return f"PolicyComparison({steps}; choice: {self.choice.policy}{f', {range_}' if range_ else ''})"

    @property
    def has_ranges(self) -> bool:
        """Whether published runs give the simulated steps ranges."""
        return self.timeline.step_range is not None

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row for every policy that has a plan; raises UserError without pandas.

        `step` are the seconds of the simulated step, `step_least` and `step_most` the range in which it is expected.
        """
        rows = [_figures(result) for result in self.results if result.simulated]
        return make_frame({name: [row[name] for row in rows] for name in rows[0]})

    def _repr_html_(self) -> str:
        """The comparison in a notebook."""
        simulated = [result for result in self.results if result.simulated]
        without = [f"{result.policy}: {result.reason}" for result in self.results if not result.simulated]
        rows = [
            (
                result.policy,
                numbers.seconds(result.timeline.step),
                *([range_in_figures(result.timeline.step_range)] if self.has_ranges else []),
                numbers.percent(result.timeline.mfu),
                numbers.percent(result.timeline.mfu_whole_squares),
                numbers.count(result.timeline.tokens_per_second),
                numbers.count(result.plan.device_count),
                numbers.count(result.plan.microbatches),
            )
            for result in simulated
        ]
        problem = self.problem
        caption = (
            f"{problem.rows:,} rows a step on at most {problem.devices:,} devices of {problem.cluster.name}, simulated"
        )
        if self.has_ranges:
            caption += "; ranges by the errors on published runs"
        columns = (
            "policy",
            "#step",
            *(["#range"] if self.has_ranges else []),
            "#MFU",
            "#MFU, causal squares whole",
            "#tokens/s",
            "#devices",
            "#microbatches",
        )
        chosen = [number for number, result in enumerate(simulated) if result is self.choice]
        notes = [element("p", note) for note in without]
        return join([table(columns, rows, caption, chosen), *notes, Html(html_fragment(self.timeline))])


def compared_policies(policy: str) -> tuple[str, ...]:
    """The names of the policies that are compared: one, or all and the local search from their plans."""
    return (*PLANNING_POLICIES, LOCAL_SEARCH) if policy == AUTO else (policy,)


def compare_policies(
    problem: PlanningProblem, policy: str = AUTO, callback: ResultCallback = lambda result: None
) -> PolicyComparison:
    """Plans a problem by one policy, or by all.

    Args:
        problem: The problem.
        policy: Name of a policy, or `AUTO`.
        callback: Called with the result of each policy as it comes (`all_results`).

    Raises:
        UserError: There is no such policy.
        PlanError: No policy has a plan that fits.
    """
    if policy == AUTO:
        return comparison_of(problem, all_results(problem, callback))
    result = run_policy(problem, policy)
    callback(result)
    return comparison_of(problem, (result,))


def comparison_of(
    problem: PlanningProblem, results: Sequence[PolicyResult], *, stopped: bool = False
) -> PolicyComparison:
    """The comparison of the results of policies; raises PlanError if none has a plan that fits."""
    return PolicyComparison(
        problem=problem,
        results=tuple(results),
        choice=best_result(problem, tuple(results)),
        bound=least_work_seconds(problem),
        stopped=stopped,
    )


def _figures(result: PolicyResult) -> dict[str, Any]:
    """Columns of a frame for a policy's plan: seconds, None where there are none; shares of the step, counts."""
    timeline = result.timeline
    least, most = timeline.step_range[:2] if timeline.step_range else (None, None)
    idle = {f"idle: {cause}": seconds / timeline.step for cause, seconds in timeline.idle.items()}
    return {
        "policy": result.policy,
        "step": timeline.step,
        "step_least": least,
        "step_most": most,
        "mfu": timeline.mfu,
        "mfu_whole_squares": timeline.mfu_whole_squares,
        "hfu": timeline.hfu,
        "hfu_whole_squares": timeline.hfu_whole_squares,
        "tokens_per_second": timeline.tokens_per_second,
        "devices": result.plan.device_count,
        "microbatches": result.plan.microbatches,
        "busy": timeline.busy / timeline.step,
        **idle,
    }


def plans_on_fewer_devices(problem: PlanningProblem, devices: int) -> list[SimulatedPlan]:
    """The best plan of `disaggregated` on each share of so many devices that holds the model, most devices first."""
    plans: list[SimulatedPlan] = []
    for share in SHARES:
        fewer = problem.with_devices(max(1, int(share * devices)))
        try:
            plans.append(best_of_policy(fewer, disaggregated.plans_of_best_size))
        except PlanError:  # the model needs more
            break
    return plans
