"""Plans of a workload of samples: its grouping is chosen by plans for each, and the best plan is made for its rows."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mmjax.planning.samples.comparison import GroupedPlan, GroupingComparison, simulated_groupings
from mmjax.planning.samples.report import groupings_html
from mmjax.planning.samples.sample_rows import SampleRows
from mmjax.planning.samples.sources import AUTO_GROUPING, GROUPINGS
from sharding.html.elements import Html, join
from sharding.planners.policies.auto import run_policy
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.fixed_ranks import FixedRanks


class SampleInputs(Protocol):
    """Inputs of the planning problems of a workload of samples (`mmjax.planning.problem_inputs`)."""

    @property
    def grouping(self) -> str:
        """A grouping, or `AUTO_GROUPING`."""
        ...

    def sample_rows(self, grouping: str) -> SampleRows:
        """The rows that a grouping makes of the samples of a step."""
        ...

    def problem(self, *, fixed_ranks: Mapping[str, FixedRanks] | None, rows: SampleRows) -> PlanningProblem:
        """The problem of these rows."""
        ...


ComparePolicies = Callable[[PlanningProblem], PolicyComparison]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SampleComparison(PolicyComparison):
    """The results of policies for a workload of samples.

    Attributes:
        rows: The rows that the samples of a step are grouped into.
        groupings: Steps with the rows of each grouping that was compared.
    """

    rows: SampleRows
    groupings: GroupingComparison

    def __repr__(self) -> str:
        return f"SampleComparison({self.rows.grouping}, {self.rows.rows:,} rows; {super().__repr__()})"

    def _repr_html_(self) -> str:
        """The comparison in a notebook."""
        return join([groupings_html(self.groupings, self.rows), Html(super()._repr_html_())])


def plan_samples(
    inputs: SampleInputs, compare: ComparePolicies, fixed_ranks: Mapping[str, FixedRanks] | None = None
) -> PolicyComparison:
    """Plans a workload of samples.

    With `auto`, policies are compared for rows of the first of `GROUPINGS`. The policy of the best plan then plans for
    the rows of each, and policies are compared again where another grouping is chosen.

    Args:
        inputs: Inputs of the problem, with a grouping.
        compare: Compares the policies.
        fixed_ranks: Context-parallel and expert ranks by module.

    Returns:
        The comparison, or as much of it as there is where it was stopped.

    Raises:
        PlanError: No policy has a plan that fits.
    """
    compared = GROUPINGS if inputs.grouping == AUTO_GROUPING else (inputs.grouping,)
    rows = inputs.sample_rows(compared[0])
    comparison = compare(inputs.problem(fixed_ranks=fixed_ranks, rows=rows))
    if comparison.stopped:
        return comparison
    try:
        groupings = _compare_groupings(inputs, comparison, rows, compared[1:], fixed_ranks)
    except KeyboardInterrupt:
        return dataclasses.replace(comparison, stopped=True)
    chosen = groupings.choice.rows
    if chosen.grouping != rows.grouping:
        rows, comparison = chosen, compare(inputs.problem(fixed_ranks=fixed_ranks, rows=chosen))
    return _with_groupings(comparison, rows, groupings)


def _compare_groupings(
    inputs: SampleInputs,
    comparison: PolicyComparison,
    rows: SampleRows,
    others: Sequence[str],
    fixed_ranks: Mapping[str, FixedRanks] | None,
) -> GroupingComparison:
    """Compares the grouping of a comparison with others, for which the policy of its best plan plans too.

    Without others, it is the best plan's grouping alone.
    """
    if not others:
        plans = [GroupedPlan(comparison.problem, comparison.plan, rows)]
        return GroupingComparison(comparison.choice.policy, simulated_groupings(plans))
    policy = comparison.choice.start or comparison.choice.policy
    (first,) = (result for result in comparison.results if result.policy == policy)
    plans, reasons = [GroupedPlan(comparison.problem, first.plan, rows)], {}
    for grouping in others:
        other_rows = inputs.sample_rows(grouping)
        problem = inputs.problem(fixed_ranks=fixed_ranks, rows=other_rows)
        result = run_policy(problem, policy)
        if result.simulated:
            plans.append(GroupedPlan(problem, result.plan, other_rows))
        else:
            reasons[grouping] = result.reason
    return GroupingComparison(policy, simulated_groupings(plans), reasons)


def _with_groupings(comparison: PolicyComparison, rows: SampleRows, groupings: GroupingComparison) -> SampleComparison:
    fields = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    sampled = SampleComparison(**fields, rows=rows, groupings=groupings)
    if "on_fewer_devices" in vars(comparison):  # it takes seconds
        vars(sampled)["on_fewer_devices"] = comparison.on_fewer_devices
    return sampled
