"""How much of the time lost to uneven rows each reordering of a batch wins back on DistTrain's models, simulated.

The lost time is a step's time less the time of a step whose rows are all the mean row. An order may win back more: with
small microbatches first and last, a pipeline fills and drains faster than with equal ones. The given order is the one
in which rows are drawn. The reference of the search is DistTrain's two algorithms together. Every policy keeps the
given order where its own is not shorter, so none loses time. In the plans of all cases items are dealt, so that
Algorithm 2 divides rows among microbatches.
"""

import dataclasses
import itertools
import math
import time
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax import cli
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.balancing.reordering.inter_microbatch import IntervalFillingOrder
from sharding.balancing.reordering.local_search import search_orders
from sharding.balancing.reordering.row_reorderer import EVALUATIONS, RowReorderer, evaluations_within_bounds
from sharding.costs.batch_costs import LoadsByModule
from sharding.planners.policies import disaggregated
from sharding.planners.policies.best_plan import best_simulated
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan

DATA = "data/laion_like.gin"
CASES = (("mllm_72b", 1296, 1920), ("mllm_15b", 1296, 1920), ("mllm_9b", 1296, 1920), ("mllm_72b", 96, 40))
POLICIES = {
    "intra_microbatch": "Algorithm 2",
    "inter_microbatch": "Algorithm 3",
    "both": "Algorithms 2 and 3",
    "search": "ours",
}
SEEDS = range(3)
BRUTE_FORCE_MICROBATCHES = 8
"""They have 40,320 orders."""
GOAL_MS = 100.0  # a tenth of a step of a second, for the rows of the largest batch

Row = dict[str, Any]


def measure() -> list[Row]:
    """Returns all rows of this section."""
    rows = []
    for model, devices, batch in CASES:
        problem, plan = plan_published_model(model, devices, batch)
        name = f"{model}, {devices:,} devices, batch {batch:,}"
        rows += policy_rows(name, problem, plan)
    return [*rows, *brute_force_rows(name, problem, in_few_microbatches(plan))]


def plan_published_model(model: str, devices: int, batch: int) -> tuple[PlanningProblem, Plan]:
    """A published model on A800s, and its best disaggregated plan with rows in the given order."""
    cli.parse_gin((f"models/{model}.gin", DATA))
    config = Workload(cli.configured(ModelConfig), cli.configured(SyntheticData), batch)
    problem = make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), devices)
    return problem, best_simulated(problem, disaggregated.plans(problem)).plan


def policy_rows(name: str, problem: PlanningProblem, plan: Plan) -> list[Row]:
    """Seconds of a step, and the share of the lost time won back, as means over several draws of rows."""
    given_seconds, equal_seconds, milliseconds = [], [], []
    policy_seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    reorderers = {policy: make_reorderer(problem, plan, policy) for policy in POLICIES}
    for seed in SEEDS:
        seeded = dataclasses.replace(problem, seed=seed)
        rows = seeded.sampled_rows
        given_seconds.append(seeded.simulate(plan).step)
        mean_rows = {module: np.repeat(loads.mean(axis=0)[None], len(loads), axis=0) for module, loads in rows.items()}
        equal_seconds.append(seeded.simulate(plan, rows=mean_rows).step)
        for policy, reorderer in reorderers.items():
            order = reorderer.row_order(rows)
            reordered = {module: loads[order] for module, loads in rows.items()}
            policy_seconds[policy].append(seeded.simulate(plan, rows=reordered).step)
        milliseconds += [time_reordering(reorderers["search"], rows) for _ in range(5)]
    lost = np.subtract(given_seconds, equal_seconds).mean()
    won_back = {
        policy: float(np.subtract(given_seconds, seconds).mean() / lost) for policy, seconds in policy_seconds.items()
    }
    table = [
        row(f"{name}: s, given order", np.mean(given_seconds)),
        row(f"{name}: s, all rows alike", np.mean(equal_seconds)),
    ]
    for policy, label in POLICIES.items():
        is_search = policy == "search"
        reference = won_back["both"] if is_search else None
        reference_seconds = np.mean(policy_seconds["both"]) if is_search else None
        table.append(row(f"{name}: s, {label}", np.mean(policy_seconds[policy]), None, reference_seconds))
        table.append(row(f"{name}: lost time won back, {label}", won_back[policy], reference, reference, most=False))
    replay = reorderers["search"].replays(reorderers["search"].given(problem.sampled_rows)).bound
    return [
        *table,
        row(f"{name}: ms to arrange, ours", min(milliseconds), GOAL_MS),
        row(f"{name}: most steps computed, ours", evaluations_within_bounds(replay, EVALUATIONS)),
        row(f"{name}: nodes of such a step", replay.nodes.graph.count),
    ]


def in_few_microbatches(plan: Plan) -> Plan:
    """The plan with so few microbatches that all orders can be tried; they are too large for its capacities."""
    units = tuple(dataclasses.replace(unit, capacities=()) for unit in plan.units)
    return dataclasses.replace(plan, units=units, microbatches=BRUTE_FORCE_MICROBATCHES)


def brute_force_rows(name: str, problem: PlanningProblem, plan: Plan) -> list[Row]:
    """How much of the gap between the mean of all orders and the best one is closed, for every pipeline by itself."""
    reorderer = make_reorderer(problem, plan, "search")
    given = reorderer.given(problem.sampled_rows)
    replays = reorderer.replays(given)
    replay, table = replays.exact, replays.exact.pipeline_microbatch_seconds(given.costs)
    m = replay.microbatches
    all_orders = np.array(list(itertools.permutations(range(m))))
    interval_orders = IntervalFillingOrder(replay).orders(table)
    gaps, remaining = 0.0, np.zeros(2)
    for pipeline in range(replay.pipelines):
        seconds = replay.step_seconds(table, all_orders + m * pipeline)
        gaps += seconds.mean() - seconds.min()
        own = interval_orders[pipeline : pipeline + 1]
        for number, orders in enumerate((own, search_orders(replay, table, own, 1024))):
            remaining[number] += replay.step_seconds(table, orders)[0] - seconds.min()
    closed = 1 - remaining / gaps
    title = f"{name}, {m} microbatches: of the gap to the best of {math.factorial(m):,} orders"
    return [
        row(f"{title}, Algorithm 3", closed[0]),
        row(f"{title}, ours", closed[1], 0.9, closed[0], most=False),
    ]


def make_reorderer(problem: PlanningProblem, plan: Plan, policy: str) -> RowReorderer:
    """A reorderer for a problem's plan."""
    resolved = ResolvedPlan(plan, problem.graph, problem.trained_parts)
    return RowReorderer(resolved, problem.costs, policy, rendezvous=problem.rendezvous)


def time_reordering(reorderer: RowReorderer, rows: LoadsByModule) -> float:
    """Milliseconds that it takes to reorder the rows of a batch once the plan is known."""
    begin = time.perf_counter()
    reorderer.row_order(rows)
    return (time.perf_counter() - begin) * 1e3


def row(name: str, value: Any, goal: Any = None, reference: Any = None, most: bool = True) -> Row:
    """Makes a row of the table; a goal is the most that a value may be, or the least."""
    met = None if goal is None else bool(value <= goal if most else value >= goal)
    figures = {"value": value, "goal": goal, "reference": reference}
    return {"name": name, "met": met} | {
        key: None if figure is None else float(figure) for key, figure in figures.items()
    }
