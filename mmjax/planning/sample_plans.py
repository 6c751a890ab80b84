"""Plans of a workload of samples: its grouping is chosen by the best plan, and the plan is made for its rows."""

import dataclasses
from collections.abc import Callable, Mapping

from mmjax.planning.problem_inputs import ProblemInputs
from mmjax.planning.samples.comparison import GroupingComparison, compare_groupings
from mmjax.planning.samples.report import groupings_html
from mmjax.planning.samples.sample_rows import SampleRows
from mmjax.planning.samples.sources import AUTO_GROUPING, GROUPINGS
from sharding.html.elements import Html, join
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.fixed_ranks import FixedRanks

ComparePolicies = Callable[[PlanningProblem], PolicyComparison]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SampleComparison(PolicyComparison):
    """The results of policies for a workload of samples.

    Attributes:
        rows: The rows that the samples of a step are grouped into.
        groupings: Steps with the rows of each grouping that was compared, all of one plan.
    """

    rows: SampleRows
    groupings: GroupingComparison

    def _repr_html_(self) -> str:
        """The comparison in a notebook."""
        return join([groupings_html(self.groupings, self.rows), Html(super()._repr_html_())])


def plan_samples(
    inputs: ProblemInputs, compare: ComparePolicies, fixed_ranks: Mapping[str, FixedRanks] | None = None
) -> PolicyComparison:
    """Plans a workload of samples.

    With `auto`, the best plan for rows of the first of `GROUPINGS` is simulated with the rows of each, and policies are
    compared again where another grouping is chosen.

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
    others = [inputs.sample_source.rows_of_step(grouping, rows.rows) for grouping in compared[1:]]
    groupings = compare_groupings(comparison.problem, comparison.plan, [rows, *others])
    chosen = groupings.choice.rows.grouping
    if chosen != rows.grouping:
        rows = inputs.sample_rows(chosen)
        comparison = compare(inputs.problem(fixed_ranks=fixed_ranks, rows=rows))
    return _with_groupings(comparison, rows, groupings)


def _with_groupings(comparison: PolicyComparison, rows: SampleRows, groupings: GroupingComparison) -> SampleComparison:
    fields = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    sampled = SampleComparison(**fields, rows=rows, groupings=groupings)
    if "on_fewer_devices" in vars(comparison):  # it takes seconds
        vars(sampled)["on_fewer_devices"] = comparison.on_fewer_devices
    return sampled
