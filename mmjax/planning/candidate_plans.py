"""The best different plans of all policies, and of changes of them, by their simulated steps, to be timed on devices.

`mmjax.time_plans` and `mmjax.plan --timed_plans` call it.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from sharding.planners.policies.auto import (
    AUTO,
    PLANNING_POLICIES,
    SPARE_PLANS,
    PolicyResult,
    is_trainable,
    run_local_search,
    why_untrainable,
)
from sharding.planners.policies.best_plan import most_economical
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError

_Candidate = tuple[str, SimulatedPlan]
"""A policy, and a plan of it."""


def best_candidates(
    problem: PlanningProblem,
    count: int,
    policy: str = AUTO,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, SimulatedPlan]:
    """Returns the plans with the shortest simulated steps that fit the memory and can be trained, shortest first.

    The most economical of all (`most_economical`), which a planner chooses, is the last where it is not among them.
    A policy may propose many plans, `balanced` several layouts with several partitions of each into stages. Of all
    policies, only the best partition of a layout is taken, so that the plans differ in more; of one policy, as in
    OmniBal's search (arXiv 2407.20761, section 4.2), all are. Plans are simulated in the order of their lower bounds,
    until none that is left could be among the best. Of all policies, the best plan with single changes
    (`run_local_search`) is among them too.

    Args:
        problem: The problem.
        count: Largest number of plans.
        policy: The policy that proposes them; `auto` for all.
        callback: Called with the number of policies that have proposed their plans, and the number of all policies.

    Returns:
        The plans by name: `balanced` for the best plan of this policy, `balanced 2` for its second best. Each plan
        records what it was made for.

    Raises:
        PlanError: No plan can be trained, or none that can fits.
    """
    policies = tuple(PLANNING_POLICIES) if policy == AUTO else (policy,)
    proposed: dict[Plan, tuple[str, Plan]] = {}
    for done, name in enumerate(policies):
        callback(done, len(policies))
        for plan in _proposed_plans(problem, name):
            proposed.setdefault(_layout(plan), (name, plan))
    callback(len(policies), len(policies))
    trainable = [(name, plan) for name, plan in proposed.values() if is_trainable(problem, plan)]
    if proposed and not trainable:
        name, plan = next(iter(proposed.values()))
        raise PlanError(
            f"no policy has a plan that can be trained; the plan of {name}: {why_untrainable(problem, plan)}"
        )
    bounds = [problem.least_step_seconds(plan) for _, plan in trainable]
    fitting: list[_Candidate] = []
    for index in sorted(range(len(trainable)), key=bounds.__getitem__):
        name, plan = trainable[index]
        if not _may_be_among(fitting, count, bounds[index], plan.device_count):
            continue
        timeline = problem.simulate(plan)
        if problem.memory_fraction(timeline) <= 1:
            fitting.append((name, SimulatedPlan(dataclasses.replace(plan, made_for=problem.purpose), timeline)))
            fitting = _best_partitions(fitting) if policy == AUTO else fitting
    if not fitting:
        raise PlanError(
            f"no plan that can be trained fits {problem.devices} devices of {problem.cluster.name}; give more devices, "
            "or devices with more memory"
        )
    best = _best(fitting, count)
    if policy == AUTO:
        best = _best([*fitting, *_changed(problem, best)], count)
    return dict(_numbered(best))


def _best(fitting: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """The shortest of some candidates, and the most economical of all in place of the last if it is not among them."""
    best = sorted(fitting, key=lambda candidate: candidate[1].timeline.step)[:count]
    economical = most_economical([simulated for _, simulated in fitting])
    if all(simulated is not economical for _, simulated in best):
        best[-1] = next(candidate for candidate in fitting if candidate[1] is economical)
    return best


def _may_be_among(fitting: Sequence[_Candidate], count: int, bound: float, devices: int) -> bool:
    """Whether a plan on so many devices, whose step is not shorter than a bound, may be one of the `_best`."""
    if len(fitting) < count:
        return True
    steps = sorted(simulated.timeline.step for _, simulated in fitting)
    economical = most_economical([simulated for _, simulated in fitting])
    is_near = bound <= steps[0] * (1 + STEP_SLACK)
    return bound < steps[count - 1] or (is_near and bound * devices < economical.device_seconds)


def _changed(problem: PlanningProblem, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The plan that single changes make of the candidates; empty if none shortens a step, or if it is one of them."""
    found = run_local_search(problem, [PolicyResult(name, simulated) for name, simulated in candidates])
    known = {_layout(simulated.plan) for _, simulated in candidates}
    return [(found.policy, found.simulated)] if found.simulated and _layout(found.plan) not in known else []


def _proposed_plans(problem: PlanningProblem, policy: str) -> Iterator[Plan]:
    """All plans that a policy proposes; none where it has none."""
    with contextlib.suppress(PlanError):
        yield from PLANNING_POLICIES[policy](problem)
        if policy in SPARE_PLANS:
            yield from SPARE_PLANS[policy](problem)


def _layout(plan: Plan) -> Plan:
    """Returns a plan without the fields that do not change its step: the names of units, and its recorded purpose."""
    units = tuple(dataclasses.replace(unit, name=" ".join(unit.modules)) for unit in plan.units)
    return dataclasses.replace(plan, units=units, made_for=None)


def _best_partitions(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The shortest of the candidates that differ only in the layers of stages and in what these recompute."""
    best: dict[tuple[object, ...], _Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate[1].timeline.step):
        best.setdefault(_apart_from_partition(candidate[1].plan), candidate)
    return list(best.values())


def _apart_from_partition(plan: Plan) -> tuple[object, ...]:
    """What plans have in common that differ only in their partitions."""
    units = [
        (unit.modules, unit.parallelism, unit.devices, unit.stage_count if unit.stage_count > 1 else unit)
        for unit in _layout(plan).units
    ]
    return plan.schedule, plan.microbatches, *units


def _numbered(candidates: Iterable[_Candidate]) -> Iterator[_Candidate]:
    """The candidates with a number behind the policy from its second on."""
    taken: dict[str, Iterator[int]] = {}
    for policy, candidate in candidates:
        number = next(taken.setdefault(policy, itertools.count(1)))
        yield (policy if number == 1 else f"{policy} {number}"), candidate
