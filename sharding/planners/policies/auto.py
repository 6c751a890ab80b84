"""Every policy on the same problem, changes of their best plans, and the best of all plans by the simulated step."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from configs.common.errors import UserError
from configs.common.proposals import nearest
from sharding.planners.context_transfer import with_best_context_transfers
from sharding.planners.moves.local_search import LEAST_GAIN, improve_plans
from sharding.planners.policies import balanced, colocated, disaggregated, fully_sharded, rigid
from sharding.planners.policies.best_plan import PlanningPolicy, SparePlans, best_of_policy, most_economical, no_plans
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import ImprovedPlan, SimulatedPlan
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.simulation.timeline import Timeline

BUILT_IN_POLICIES: Mapping[str, PlanningPolicy] = {
    "rigid": rigid.plans,
    "rigid_first_stage": rigid.first_stage_plans,
    "ratio": disaggregated.flops_proportional_plans,
    "disaggregated": disaggregated.plans,
    "balanced": balanced.plans,
    "fsdp": fully_sharded.plans,
    "colocated": colocated.plans,
}

AUTO = "auto"
"""Stands for all policies, of which the best plan is chosen."""

LOCAL_SEARCH = "local_search"
"""Stands for the plans that single changes make of the policies' plans (`run_local_search`)."""

_STARTS = 2  # plans that are changed, at most

SPARE_PLANS: Mapping[str, SparePlans] = {
    "balanced": balanced.spare_plans,
    "disaggregated": disaggregated.spare_plans,
}
"""Further plans of a policy, simulated where none of the plans that it returned fits."""

ENDING_EARLY: Mapping[str, Callable[[PlanningProblem, float], list[Plan]]] = {"colocated": colocated.plans}
"""Policies that end their search early where its first plan takes far longer than a step that is known, in seconds."""

PLANNING_POLICIES = dict(BUILT_IN_POLICIES)
"""All policies by name: the built-in ones, and the ones that a user registers (`register_policy`)."""


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyResult:
    """The result of a policy for a problem.

    Attributes:
        policy: Name of the policy.
        simulated: Its best plan with the simulated step; None where it has none.
        reason: Why it has none.
        start: The policy from whose plan `LOCAL_SEARCH` started; empty for others.
        changes: What it changed in that plan, in words.
    """

    policy: str
    simulated: SimulatedPlan | None
    reason: str = ""
    start: str = ""
    changes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of a policy that has one."""
        assert self.simulated is not None, self.reason
        return self.simulated.plan

    @property
    def timeline(self) -> Timeline:
        """The simulated step of a policy that has a plan."""
        assert self.simulated is not None, self.reason
        return self.simulated.timeline


ResultCallback = Callable[[PolicyResult], None]
"""Called with a result of a policy."""


def register_policy(name: str, policy: PlanningPolicy) -> None:
    """Registers a planning policy, which is then compared with the others; one's own may be registered again.

    Args:
        name: Its name in reports, and for `--policy`.
        policy: Returns plans worth simulating, and raises PlanError with the reason where there are none.

    Raises:
        UserError: A built-in policy has this name.
    """
    if name in (*BUILT_IN_POLICIES, LOCAL_SEARCH, AUTO):
        raise UserError(f"the policy {name!r} is built in; register yours under another name")

    def checked_plans(problem: PlanningProblem) -> list[Plan]:
        plans = policy(problem)
        if not plans:
            raise PlanError("the policy returns no plan")
        for plan in plans:
            resolve_plan(plan, problem.graph, problem.devices)
        return plans

    PLANNING_POLICIES[name] = checked_plans


def policy_fault(policy: str) -> str:
    """Why a name is neither a policy nor `auto`, to follow the name in a message; empty if it is one of them."""
    if policy == LOCAL_SEARCH:
        return "changes the plans of other policies; use auto, which compares it with them"
    known = (AUTO, *PLANNING_POLICIES)
    return "" if policy in known else f"is not one of {', '.join(known)}{nearest(policy, known)}"


def run_policy(problem: PlanningProblem, policy: str, known_step: float = math.inf) -> PolicyResult:
    """One policy's best plan, or why it has none.

    Args:
        problem: The problem.
        policy: Name of the policy.
        known_step: Seconds of the shortest step of another policy's plan (`ENDING_EARLY`).

    Raises:
        UserError: There is no such policy.
    """
    if policy == AUTO:
        raise UserError(f"policy {AUTO!r} stands for all policies; name one of {', '.join(PLANNING_POLICIES)}")
    if fault := policy_fault(policy):
        raise UserError(f"policy {policy!r} {fault}")

    def plans(of_problem: PlanningProblem) -> list[Plan]:
        if policy in ENDING_EARLY:
            return ENDING_EARLY[policy](of_problem, known_step)
        return PLANNING_POLICIES[policy](of_problem)

    try:
        best = best_of_policy(problem, plans, SPARE_PLANS.get(policy, no_plans))
    except PlanError as error:
        return PolicyResult(policy, None, str(error))
    plan, timeline = with_best_context_transfers(problem, best.plan, best.timeline)
    return PolicyResult(policy, SimulatedPlan(dataclasses.replace(plan, made_for=problem.purpose), timeline))


def all_results(problem: PlanningProblem, callback: ResultCallback = lambda result: None) -> list[PolicyResult]:
    """The result of every policy, and at last of changes of their best plans.

    Args:
        problem: The problem.
        callback: Called with each result as it comes; also with every better plan of the local search.
    """
    results: list[PolicyResult] = []
    for policy in PLANNING_POLICIES:
        steps = (result.timeline.step for result in results if result.simulated)
        results.append(run_policy(problem, policy, min(steps, default=math.inf)))
        callback(results[-1])
    results.append(run_local_search(problem, results, callback))
    callback(results[-1])
    return results


def run_local_search(
    problem: PlanningProblem, results: Sequence[PolicyResult], callback: ResultCallback = lambda result: None
) -> PolicyResult:
    """The best plan that single changes make of the best plans of policies, or why there is none.

    Args:
        problem: The problem.
        results: Results of policies; of the plans that can be trained, the `_STARTS` with the shortest steps are
            changed.
        callback: Called with every plan that is better than all plans before.
    """
    with_plan = [result for result in results if result.simulated and is_trainable(problem, result.plan)]
    starts = sorted(with_plan, key=lambda result: result.timeline.step)[:_STARTS]
    best_step = min((start.timeline.step for start in starts), default=math.inf)

    def show(number: int, found: ImprovedPlan) -> None:
        nonlocal best_step
        if found.timeline.step < best_step:
            best_step = found.timeline.step
            callback(_found_from(problem, starts[number], found))

    plans = improve_plans(problem, [ImprovedPlan(start.plan, start.timeline) for start in starts], show)
    improved = [(start, found) for start, found in zip(starts, plans, strict=True) if found.changes]
    if not starts:
        return PolicyResult(LOCAL_SEARCH, None, "no policy has a plan that can be trained")
    if not improved:
        return PolicyResult(LOCAL_SEARCH, None, f"no change of a plan shortens its step by {LEAST_GAIN:.1%}")
    start, best = min(improved, key=lambda pair: pair[1].timeline.step)
    if best.timeline.step > starts[0].timeline.step:
        return PolicyResult(
            LOCAL_SEARCH, None, f"changes of plans make none as short as the plan of {starts[0].policy}"
        )
    plan, timeline = with_best_context_transfers(problem, best.plan, best.timeline)
    return _found_from(problem, start, ImprovedPlan(plan, timeline, best.changes))


def _found_from(problem: PlanningProblem, start: PolicyResult, found: ImprovedPlan) -> PolicyResult:
    """The result of the local search that is a changed plan of a policy."""
    simulated = SimulatedPlan(dataclasses.replace(found.plan, made_for=problem.purpose), found.timeline)
    return PolicyResult(LOCAL_SEARCH, simulated, start=start.policy, changes=found.changes)


def is_trainable(problem: PlanningProblem, plan: Plan) -> bool:
    """Whether the trainer can run a plan; a plan that it cannot run still serves for comparison."""
    return not why_untrainable(problem, plan)


def why_untrainable(problem: PlanningProblem, plan: Plan) -> str:
    """Returns the reason why the trainer cannot run a plan; empty if it can."""
    try:
        resolve_plan(plan, problem.graph, problem.devices, problem.rows)
    except PlanError as error:
        return str(error)
    return ""


def best_result(problem: PlanningProblem, results: Sequence[PolicyResult]) -> PolicyResult:
    """Returns the most economical of the plans that the trainer can run, if there are any; else of all.

    Raises PlanError if no policy has a plan, with the reason of one: `disaggregated` says which cluster would do.
    """
    with_plan = [result for result in results if result.simulated]
    if not with_plan:
        reasons: dict[str, list[str]] = {}
        for result in results:
            reasons.setdefault(result.reason, []).append(result.policy)
        reason, policies = max(reasons.items(), key=lambda item: ("disaggregated" in item[1], len(item[1])))
        others = [result.policy for result in results if result.policy not in policies]
        also = f". No other policy has a plan ({', '.join(others)}); --policy=NAME tells why" if others else ""
        raise PlanError(f"{', '.join(policies)}: {reason}{also}")
    eligible = [result for result in with_plan if is_trainable(problem, result.plan)] or with_plan
    best = most_economical([result.simulated for result in eligible if result.simulated])
    return next(result for result in eligible if result.simulated is best)


def plan_automatically(problem: PlanningProblem, callback: ResultCallback = lambda result: None) -> PolicyResult:
    """The best result of all policies; takes the arguments of `all_results`."""
    return best_result(problem, all_results(problem, callback))
