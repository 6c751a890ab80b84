"""Of the plans of one policy, the best that fits the memory, by the simulated step and the device-seconds."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.specs.layers.layer import RecomputePolicy

PlanningPolicy = Callable[[PlanningProblem], list[Plan]]
"""Returns plans worth simulating; raises PlanError with the reason where there are none."""

SparePlans = Callable[[PlanningProblem], Iterable[Plan]]
"""Gives further plans, of which the first that fits is taken where no other plan does."""


def no_plans(_: PlanningProblem) -> Iterable[Plan]:
    """The spare plans of a policy that has none."""
    return ()


class HostMemoryError(PlanError):
    """Plans that do not fit, of which some take more of the hosts' memory than there is."""


def best_of_policy(
    problem: PlanningProblem,
    policy: PlanningPolicy,
    spare: SparePlans = no_plans,
) -> SimulatedPlan:
    """Returns the best plan of a policy that fits; a plan without `offload` if plans with it overfill hosts.

    Policies choose recomputation by the memory of devices, so that what is offloaded may be more than a host holds.

    Args:
        problem: The problem.
        policy: The policy.
        spare: As in `best_simulated`.

    Raises:
        PlanError: The policy has no plan, or none that fits.
    """
    try:
        return best_simulated(problem, policy(problem), spare)
    except HostMemoryError as error:
        choices = problem.recompute_choices
        others: tuple[RecomputePolicy, ...] = tuple(choice for choice in choices if choice != "offload")
        if not others or others == choices:
            raise
        without = problem.with_recompute_choices(others)
        try:
            return best_simulated(without, policy(without), spare)
        except PlanError as other:
            raise PlanError(f"{error}; without offload: {other}") from other


def best_simulated(
    problem: PlanningProblem,
    plans: Sequence[Plan],
    spare: SparePlans = no_plans,
) -> SimulatedPlan:
    """Returns the best of the plans that fit the memory, by their simulated steps (`most_economical`).

    Plans are simulated in the order of their lower bounds, until none that is left could be chosen.

    Args:
        problem: The problem.
        plans: The plans.
        spare: Plans of which the first that fits is taken where none of `plans` does.

    Raises:
        PlanError: None fits; a HostMemoryError if some need more host memory than there is.
    """
    bounds = [problem.least_step_seconds(plan) for plan in plans]
    fitting: dict[int, SimulatedPlan] = {}
    too_large: list[SimulatedPlan] = []
    shortest = math.inf
    for index in sorted(range(len(plans)), key=bounds.__getitem__):
        bound, plan = bounds[index], plans[index]
        if bound > shortest * (1 + STEP_SLACK):
            break
        if any(_is_no_worse(result, bound, bound * plan.device_count) for result in fitting.values()):
            continue
        simulated = SimulatedPlan(plan, problem.simulate(plan))
        if simulated.timeline.step > shortest * (1 + STEP_SLACK):
            continue
        if problem.memory_fraction(simulated.timeline) > 1:
            too_large.append(simulated)
            continue
        fitting[index] = simulated
        shortest = min(shortest, simulated.timeline.step)
    if fitting:
        return most_economical([fitting[index] for index in sorted(fitting)])
    for plan in spare(problem):
        simulated = SimulatedPlan(plan, problem.simulate(plan))
        if problem.memory_fraction(simulated.timeline) <= 1:
            return simulated
        too_large.append(simulated)
    raise _memory_error(problem, too_large)


def most_economical(simulated: Sequence[SimulatedPlan]) -> SimulatedPlan:
    """Returns, of the plans whose step is within STEP_SLACK of the shortest, the one with the fewest device-seconds."""
    longest = min(result.timeline.step for result in simulated) * (1 + STEP_SLACK)
    near = (result for result in simulated if result.timeline.step <= longest)
    return min(near, key=lambda result: result.device_seconds)


def _is_no_worse(result: SimulatedPlan, step: float, device_seconds: float) -> bool:
    """Whether a plan is as short and takes as few device-seconds as these figures."""
    return result.timeline.step <= step and result.device_seconds <= device_seconds


class _MemoryNeed(NamedTuple):
    """The bytes of a memory that a pipeline rank takes.

    Attributes:
        needed: Bytes that it takes at most.
        room: Bytes that there are.
        where: The memory, in words.
        rank: The unit, and the number of the rank in it.
    """

    needed: float
    room: float
    where: str
    rank: tuple[str, int]

    @property
    def fraction(self) -> float:
        """Share of the memory that the plan takes, from 0 on."""
        return self.needed / self.room if self.needed else 0.0


def _memory_error(problem: PlanningProblem, too_large: Sequence[SimulatedPlan]) -> PlanError:
    """Returns the error of the plan that comes nearest to fitting: the rank and the memory that it overfills most."""
    cluster = problem.cluster
    nearest = min((result.timeline for result in too_large), key=problem.memory_fraction)
    most = max(
        (
            _MemoryNeed(peak(lane), room, where, (lane.rank[0], lane.stage))
            for peak, room, where in (
                (nearest.lane_peak_memory, cluster.usable_memory, "on each device"),
                (nearest.lane_peak_host_memory, cluster.host_memory, "of host memory for each device"),
            )
            for lane in nearest.lanes
        ),
        key=lambda need: need.fraction,
    )
    unit, stage = most.rank
    overfills_hosts = any(
        result.timeline.lane_peak_host_memory(lane) > cluster.host_memory
        for result in too_large
        for lane in result.timeline.lanes
    )
    return (HostMemoryError if overfills_hosts else PlanError)(
        f"unit {unit}: with the rows that were drawn, its stage {stage} needs {most.needed / 1e9:.1f} GB {most.where}, "
        f"{(most.needed - most.room) / 1e9:.1f} GB more than the {most.room / 1e9:.0f} GB of {cluster.name} on the "
        f"best layout for {problem.devices} devices; give it more devices or shorter rows"
    )
