"""Plans of small problems, whose edits take milliseconds."""

import functools

from sharding.planners.policies.auto import run_policy
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from tests.sharding.planners.problems import problem

POLICIES = ("disaggregated", "fsdp", "colocated", "balanced", "rigid_first_stage")


@functools.cache
def small_problem() -> PlanningProblem:
    """Vision, backbone and generator on devices that leave room for other layouts."""
    return problem(devices=16, rows=32, chunks=(1, 2))


@functools.cache
def planned(policy: str) -> SimulatedPlan:
    """The best plan of a policy for `small_problem`."""
    simulated = run_policy(small_problem(), policy).simulated
    assert simulated is not None
    return simulated
