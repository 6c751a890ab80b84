"""`mmjax.time_plans`: plans timed on the devices of this process, for programs and notebooks."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import jax

from configs.common.errors import UserError
from configs.common.short_repr import in_one_line
from mmjax.planning.automatic import cluster_of_devices
from mmjax.planning.candidate_plans import best_candidates
from mmjax.planning.problem import make_problem, workload_statistics
from mmjax.planning.timed_plans import TimedPlans, time_on_devices
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import COLLECTING, TIMING, display_call
from sharding.plans.plan import Plan, as_plan
from sharding.plans.plan_purpose import hops_of_processes


def time_plans(
    config: TrainConfig, plans: Mapping[str, Plan | str | os.PathLike[str]] | int = 3, steps: int = 5
) -> TimedPlans:
    """Trains some steps under each of some plans on the devices of this process, and compares their times.

        timed = mmjax.time_plans(config, {"one unit": plan, "two units": other})
        timed.fastest.plan.save("plan.json")
        timed = mmjax.time_plans(config)  # the best three of all policies

    In every step each plan has a turn, so that a machine that slows down does so for all alike. A turn begins with the
    initial state and trains twice on one batch, which is the same for all plans; only the second time is measured,
    because programs compile in the first. One state is alive at a time, and nothing is written. A plan that cannot run,
    for lack of memory for example, is in the result with its error. After two seconds it shows its progress on
    standard error.

    Args:
        config: The run: its model, data, seed, optimizer, parts that train, transport of hops and order of rows.
        plans: Plans or plan files by name; or a number, for as many of the different plans of all policies whose
            simulated steps on these devices are the shortest.
        steps: Number of steps that are timed of each plan.

    Raises:
        UserError: This is one of several processes, an argument is of another kind, a number is below 1, or a plan file
            cannot be read.
        PlanError: No policy has a plan that fits and can be trained.
    """
    check_arguments(config, plans, steps)
    cluster = cluster_of_devices(jax.devices()[0].device_kind)
    problem = make_problem(config, workload_statistics(config), cluster, jax.device_count())
    problem = dataclasses.replace(problem, hops=hops_of_processes(jax.process_count()))
    with display_call() as display:
        if isinstance(plans, int):
            candidates = best_candidates(problem, plans, callback=functools.partial(display.show, COLLECTING))
            timed = {name: candidate.plan for name, candidate in candidates.items()}
        else:
            timed = {name: as_plan(plan) for name, plan in plans.items()}
        return time_on_devices(config, problem, timed, steps, functools.partial(display.show, TIMING))


def check_arguments(config: Any, plans: Any, steps: Any) -> None:
    """Raises UserError for an argument of another kind than `time_plans` takes, and for numbers below 1."""
    if not isinstance(config, TrainConfig):
        raise UserError(f"mmjax.time_plans: config is {_shown(config)}; give a TrainConfig, such as mmjax.load(file)")
    if not _is_count(plans) and not isinstance(plans, Mapping):
        raise UserError(
            f"mmjax.time_plans: plans is {_shown(plans)}; give a dict of plans or plan files by name, or a whole number"
        )
    if not _is_count(steps):
        raise UserError(f"mmjax.time_plans: steps is {steps!r:.80}; give a whole number")
    for name, value in (("plans", plans if isinstance(plans, int) else len(plans)), ("steps", steps)):
        if value < 1:
            raise UserError(f"mmjax.time_plans: {name} is {value}; give at least 1")
    for name, plan in () if isinstance(plans, int) else plans.items():
        if not isinstance(plan, Plan | str | os.PathLike):
            raise UserError(f"mmjax.time_plans: the plan {name!r} is {_shown(plan)}; give a Plan or a plan file")


def _shown(value: Any) -> str:
    return f"{in_one_line(repr(value)):.80}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
