"""Plans timed on devices, for programs and notebooks."""

from collections.abc import Mapping

import jax

from configs.errors import UserError
from mmjax.planning.automatic import cluster_of_devices
from mmjax.planning.candidate_plans import best_candidates
from mmjax.planning.problem import make_problem, workload_statistics
from mmjax.planning.timed_plans import TimedPlans, time_on_devices
from mmjax.training.config import TrainConfig
from sharding.plans.plan import Plan


def time_plans(config: TrainConfig, plans: Mapping[str, Plan] | int = 3, steps: int = 5) -> TimedPlans:
    """Trains some steps under each of some plans on the devices of this process, and compares what they take.

        timed = mmjax.time_plans(config, {"one unit": plan, "two units": other})
        timed.fastest.plan.save("plan.json")
        timed = mmjax.time_plans(config)  # the best three of all policies

    In every step each plan has a turn, so that a machine that slows down does so for all alike. A turn begins with the
    initial state and trains twice on one batch, which is the same for all plans; only the second time is measured,
    because programs compile in the first. One state is alive at a time, and nothing is written. A plan that cannot run,
    for want of memory for example, is in the result with its error.

    Args:
        config: The run: its model, data, seed, optimizer, parts that train, transport of hops and order of rows.
        plans: Plans by name; or a number, for as many of the different plans of all policies whose simulated steps on
            these devices are the shortest.
        steps: Steps to time of each.

    Raises:
        UserError: This is one of several processes, or a number is below 1.
        PlanError: No policy has a plan that fits and can be trained.
    """
    for name, value in (("plans", plans if isinstance(plans, int) else len(plans)), ("steps", steps)):
        if value < 1:
            raise UserError(f"mmjax.time_plans: {name} is {value}; give at least 1")
    cluster = cluster_of_devices(jax.devices()[0].device_kind)
    problem = make_problem(config, workload_statistics(config), cluster, jax.device_count())
    if isinstance(plans, int):
        plans = {name: candidate.plan for name, candidate in best_candidates(problem, plans).items()}
    return time_on_devices(config, problem, plans, steps)
