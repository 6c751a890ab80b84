"""A plan file with the problem that it is for, as `simulate` and `dryrun` read them."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from mmjax import cli
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import ProblemInputs, read_problem

if TYPE_CHECKING:
    from sharding.plans.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanFileArguments(ProblemArguments):
    """Flags of a command on a plan file."""

    plan: str = cli.flag(
        "",
        "Plan file, such as python -m mmjax.plan --output writes. Flags that are left out have the values that it was "
        "made for.",
        metavar="FILE",
    )


class PlanOfProblem(NamedTuple):
    """A plan, the problem that it is for, and the devices of the cluster."""

    plan: "Plan"
    inputs: ProblemInputs
    devices: int


def read_plan_file(arguments: PlanFileArguments) -> PlanOfProblem:
    """Reads the plan and its problem.

    Raises:
        UserError: There is no plan file.
        PlanError: The plan does not hold the model or exceeds the devices.
    """
    if not arguments.plan:
        raise cli.UserError(
            "--plan is missing: give a plan file, such as python -m mmjax.plan --output=plan.json writes"
        )
    from mmjax.training.config import find_plan_file
    from sharding.plans.plan import Plan
    from sharding.plans.resolved.resolved_plan import resolve_plan
    from sharding.specs.modules import module_graph

    plan = Plan.load(find_plan_file(arguments.plan))
    inputs = read_problem(arguments, plan.made_for)
    devices = inputs.devices or plan.devices_needed
    resolve_plan(plan, module_graph(inputs.config.model), devices)
    return PlanOfProblem(plan, inputs, devices)
