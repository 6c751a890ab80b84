"""How much of the time lost to uneven rows each order of a global batch wins back, on DistTrain's models, simulated.

Lost is what a step takes beyond that of rows that are all alike. An order may win more: with small microbatches at its
ends a pipeline fills and drains faster than with equal ones. The given order is the drawn one. References are those of
DistTrain's two algorithms together.
"""

import dataclasses
import itertools
import math
import time
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from configs.workloads import SyntheticData, Workload
from mmjax import cli
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.balancing.reordering.local_search import search_orders
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.planners import disaggregated
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plans import best_simulated
from sharding.plans.plan import Plan

DATA = "data/laion_like.gin"
CASES = (("mllm_72b", 1296, 1920), ("mllm_15b", 1296, 1920), ("mllm_9b", 1296, 1920), ("mllm_72b", 96, 40))
POLICIES = {
    "intra_microbatch": "Algorithm 2",
    "inter_microbatch": "Algorithm 3",
    "both": "Algorithms 2 and 3",
    "search": "ours",
}
SEEDS = range(3)
FEW = 8
"""So many microbatches have 40,320 orders."""
GOAL_MS = 100.0  # a tenth of a step of a second, for the rows of the largest batch

Row = dict[str, Any]


def measure() -> list[Row]:
    """Every row of this part."""
    rows = []
    for model, devices, batch in CASES:
        problem, plan = planned(model, devices, batch)
        name = f"{model}, {devices:,} devices, batch {batch:,}"
        rows += policy_rows(name, problem, plan)
        if plan.microbatches <= FEW:
            rows += brute_force_rows(name, problem, plan)
    return rows


def planned(model: str, devices: int, batch: int) -> tuple[PlanningProblem, Plan]:
    """A published model on A800s, and the best disaggregated plan by the rows as drawn."""
    cli.parse_gin(f"models/{model}.gin", DATA)
    config = Workload(cli.configured(ModelConfig), cli.configured(SyntheticData), batch)
    problem = make_problem(config, workload_statistics(config), CLUSTERS["a800"], devices)
    return problem, best_simulated(problem, disaggregated.plans(problem)).plan


def policy_rows(name: str, problem: PlanningProblem, plan: Plan) -> list[Row]:
    """Seconds of a step, and the share of the lost time won back, the mean over several draws of rows."""
    given, alike, spent = [], [], []
    steps: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    arrangers = {policy: arranger(problem, plan, policy) for policy in POLICIES}
    for seed in SEEDS:
        drawn = dataclasses.replace(problem, seed=seed)
        rows = drawn.sampled_rows
        given.append(drawn.simulate(plan).step)
        mean = {module: np.repeat(loads.mean(axis=0)[None], len(loads), axis=0) for module, loads in rows.items()}
        alike.append(drawn.simulate(plan, rows=mean).step)
        for policy, each in arrangers.items():
            order = each.row_order(rows)
            steps[policy].append(drawn.simulate(plan, rows={key: loads[order] for key, loads in rows.items()}).step)
        spent += [timed(arrangers["search"], rows) for _ in range(5)]
    lost = np.subtract(given, alike).mean()
    won = {policy: float(np.subtract(given, of).mean() / lost) for policy, of in steps.items()}
    found = [
        row(f"{name}: s, given order", np.mean(given)),
        row(f"{name}: s, all rows alike", np.mean(alike)),
    ]
    for policy, label in POLICIES.items():
        ours = policy == "search"
        reference = won["both"] if ours else None
        found.append(row(f"{name}: s, {label}", np.mean(steps[policy]), None, np.mean(steps["both"]) if ours else None))
        found.append(row(f"{name}: lost time won back, {label}", won[policy], reference, reference, most=False))
    return [*found, row(f"{name}: ms to arrange, ours", min(spent), GOAL_MS)]


def brute_force_rows(name: str, problem: PlanningProblem, plan: Plan) -> list[Row]:
    """Of every pipeline apart: how much of the way from the mean of all its orders to the best one is gone."""
    replay, intervals, table = arranger(problem, plan, "search").replay_with_costs(problem.sampled_rows)
    m = replay.microbatches
    every = np.array(list(itertools.permutations(range(m))))
    filled = intervals.orders(table)
    gaps, left = 0.0, np.zeros(2)
    for pipeline in range(replay.pipelines):
        seconds = replay.step_seconds(table, every + m * pipeline)
        gaps += seconds.mean() - seconds.min()
        own = filled[pipeline : pipeline + 1]
        for number, orders in enumerate((own, search_orders(replay, table, own, 1024))):
            left[number] += replay.step_seconds(table, orders)[0] - seconds.min()
    closed = 1 - left / gaps
    of = f"{name}: of the gap to the best of {math.factorial(m):,} orders"
    return [
        row(f"{of}, Algorithm 3", closed[0]),
        row(f"{of}, ours", closed[1], 0.9, closed[0], most=False),
    ]


def arranger(problem: PlanningProblem, plan: Plan, policy: str) -> RowReorderer:
    """For a problem's plan."""
    return RowReorderer(plan, problem.graph, problem.costs, problem.trained_parts, policy)


def timed(of: RowReorderer, rows: dict[str, np.ndarray]) -> float:
    """Milliseconds that an arrangement takes once the plan is known."""
    begin = time.perf_counter()
    of.row_order(rows)
    return (time.perf_counter() - begin) * 1e3


def row(name: str, value: float, goal: float | None = None, reference: float | None = None, most: bool = True) -> Row:
    """One row; a goal is the most that a value may be, or the least."""
    met = None if goal is None else bool(value <= goal if most else value >= goal)
    floats = {"value": value, "goal": goal, "reference": reference}
    return {"name": name, "met": met} | {key: None if of is None else float(of) for key, of in floats.items()}
