"""Every policy on the same problem, and the best of them by the simulated step."""

import dataclasses
from collections.abc import Sequence

from configs.errors import UserError
from sharding.plan import Plan, PlanError, check_plan
from sharding.planners import disaggregated, ratio, rigid
from sharding.planners.policies import Policy, Rehearsed, rehearsed_best, shortest
from sharding.planners.problem import Problem
from sharding.timeline import Timeline

POLICIES: dict[str, Policy] = {
    "rigid": rigid.plans,
    "rigid_first_stage": rigid.first_stage_plans,
    "ratio": ratio.plans,
    "disaggregated": disaggregated.plans,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What a policy comes to on a problem.

    Attributes:
        policy: Its name.
        rehearsed: Its best plan with the simulated step; None where it has none.
        reason: Why it has none.
    """

    policy: str
    rehearsed: Rehearsed | None
    reason: str = ""

    @property
    def plan(self) -> Plan:
        """The plan of a policy that has one."""
        assert self.rehearsed is not None, self.reason
        return self.rehearsed.plan

    @property
    def timeline(self) -> Timeline:
        """Its simulated step."""
        assert self.rehearsed is not None, self.reason
        return self.rehearsed.timeline


def run_policy(problem: Problem, policy: str) -> Outcome:
    """One policy's best plan, or why it has none; raises UserError for a name that is no policy."""
    if policy not in POLICIES:
        raise UserError(f"there is no policy {policy!r}; choose from auto, {', '.join(POLICIES)}")
    try:
        return Outcome(policy, rehearsed_best(problem, POLICIES[policy](problem)))
    except PlanError as error:
        return Outcome(policy, None, str(error))


def runs(problem: Problem, plan: Plan) -> bool:
    """Whether the trainer takes a plan; one that it refuses is there to be compared with."""
    try:
        check_plan(plan, problem.graph, problem.rows, problem.devices)
    except PlanError:
        return False
    return True


def choose(problem: Problem, outcomes: Sequence[Outcome]) -> Outcome:
    """Of those that the trainer takes, if there are any, the shortest step; of equal ones that on the fewest devices.

    Raises PlanError if no policy has a plan.
    """
    found = [outcome for outcome in outcomes if outcome.rehearsed]
    if not found:
        reasons: dict[str, list[str]] = {}
        for outcome in outcomes:
            reasons.setdefault(outcome.reason, []).append(outcome.policy)
        raise PlanError("; ".join(f"{', '.join(policies)}: {reason}" for reason, policies in reasons.items()))
    found = [outcome for outcome in found if runs(problem, outcome.plan)] or found
    best = shortest([outcome.rehearsed for outcome in found if outcome.rehearsed])
    return next(outcome for outcome in found if outcome.rehearsed is best)


def auto(problem: Problem) -> Outcome:
    """The best of all policies."""
    return choose(problem, [run_policy(problem, policy) for policy in POLICIES])
