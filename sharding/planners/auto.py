"""Every policy on the same problem, and the best of them by the simulated step."""

import dataclasses
from collections.abc import Sequence

from configs.errors import UserError
from sharding.planners import disaggregated, rigid
from sharding.planners import flops_ratio as ratio
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plans import PlanningPolicy, SimulatedPlan, best_simulated, shortest_step
from sharding.plans.plan import Plan, check_plan
from sharding.plans.unit_plan import PlanError
from sharding.simulation.timeline import Timeline

PLANNING_POLICIES: dict[str, PlanningPolicy] = {
    "rigid": rigid.plans,
    "rigid_first_stage": rigid.first_stage_plans,
    "ratio": ratio.plans,
    "disaggregated": disaggregated.plans,
}


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyResult:
    """What a policy comes to on a problem.

    Attributes:
        policy: Its name.
        rehearsed: Its best plan with the simulated step; None where it has none.
        reason: Why it has none.
    """

    policy: str
    simulated: SimulatedPlan | None
    reason: str = ""

    @property
    def plan(self) -> Plan:
        """The plan of a policy that has one."""
        assert self.simulated is not None, self.reason
        return self.simulated.plan

    @property
    def timeline(self) -> Timeline:
        """Its simulated step."""
        assert self.simulated is not None, self.reason
        return self.simulated.timeline


def run_policy(problem: PlanningProblem, policy: str) -> PolicyResult:
    """One policy's best plan, or why it has none; raises UserError for a name that is no policy."""
    if policy not in PLANNING_POLICIES:
        raise UserError(f"there is no policy {policy!r}; choose from auto, {', '.join(PLANNING_POLICIES)}")
    try:
        return PolicyResult(policy, best_simulated(problem, PLANNING_POLICIES[policy](problem)))
    except PlanError as error:
        return PolicyResult(policy, None, str(error))


def is_trainable(problem: PlanningProblem, plan: Plan) -> bool:
    """Whether the trainer takes a plan; one that it refuses is there to be compared with."""
    try:
        check_plan(plan, problem.graph, problem.rows, problem.devices)
    except PlanError:
        return False
    return True


def best_result(problem: PlanningProblem, outcomes: Sequence[PolicyResult]) -> PolicyResult:
    """Of those that the trainer takes, if there are any, the shortest step; of equal ones that on the fewest devices.

    Raises PlanError if no policy has a plan.
    """
    found = [outcome for outcome in outcomes if outcome.simulated]
    if not found:
        reasons: dict[str, list[str]] = {}
        for outcome in outcomes:
            reasons.setdefault(outcome.reason, []).append(outcome.policy)
        raise PlanError("; ".join(f"{', '.join(policies)}: {reason}" for reason, policies in reasons.items()))
    found = [outcome for outcome in found if is_trainable(problem, outcome.plan)] or found
    best = shortest_step([outcome.simulated for outcome in found if outcome.simulated])
    return next(outcome for outcome in found if outcome.simulated is best)


def plan_automatically(problem: PlanningProblem) -> PolicyResult:
    """The best of all policies."""
    return best_result(problem, [run_policy(problem, policy) for policy in PLANNING_POLICIES])
