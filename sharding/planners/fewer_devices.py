"""What a step takes on fewer devices: the front of step time against devices, below the plan that is chosen."""

from sharding.planners import disaggregated
from sharding.planners.auto import SimulatedPlan, best_simulated
from sharding.planners.problem import PlanningProblem
from sharding.plans.unit_plan import PlanError

SHARES = (0.75, 0.5)
"""Shares of the chosen plan's devices."""


def plans_on_fewer_devices(problem: PlanningProblem, devices: int) -> list[SimulatedPlan]:
    """The best plan of `disaggregated` on each share of so many devices that holds the model, most devices first."""
    found: list[SimulatedPlan] = []
    for share in SHARES:
        fewer = problem.with_devices(max(1, int(share * devices)))
        try:
            found.append(best_simulated(fewer, disaggregated.plans_of_best_size(fewer)))
        except PlanError:  # the model needs more
            break
    return found
