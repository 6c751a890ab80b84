"""How fast plans are found, and how near to the relaxed optimum, on MLLM-72B."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.relaxation import RelaxedProblems, relaxed_problems, solve_relaxations
from sharding.planners.problem import PlanningProblem
from sharding.specs.modules import ModuleGraph

SIZES = ((1296, 1920), (648, 960), (324, 480), (112, 240))
"""(GPUs, batch) at which DistTrain times its solver."""

LARGEST = ((100_000, 1920), (100_000, 122_880))
GOAL, GOAL_LARGEST, GOAL_RELAXED = 0.080, 2.0, 1e-4
PAPER = {1296: 0.922}
REPEATS = 7
COMPARED = 24
"""Number of candidates that scipy solves too."""


def measure_speed(model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Returns the rows of the planner's speed and distance from the optimum."""
    rows = []
    for devices, batch in (*SIZES, *LARGEST):
        problem = every_candidate(model, data, devices, batch)
        goal = GOAL_LARGEST if devices > SIZES[0][0] else GOAL if devices == SIZES[0][0] else None
        tables, _ = _timed(lambda problem: problem.module_tables, problem, 1)
        bound, candidates = _timed(solve_relaxations, problem, REPEATS)
        seconds, layouts = _timed(search_layouts, problem, REPEATS)
        where = f"{devices:,} devices, batch {batch:,}, {len(candidates.dp):,} candidates"
        gap = layouts[0].seconds / candidates.seconds.min() - 1
        rows += [
            _row(f"seconds to the exact plan: {where}", seconds, goal, PAPER.get(devices)),
            _row(f"  of them, to all relaxed optima: {where}", bound),
            _row(f"  before, once a problem, to the costs of all modules: {where}", tables),
            _row(f"  exact plan above the relaxed optimum: {where}", gap),
        ]
    problem = every_candidate(model, data, *SIZES[0])
    rows.append(_row("largest relative difference from scipy's optima", _difference(problem), GOAL_RELAXED))
    return rows


def every_candidate(model: ModelConfig, data: SyntheticData, devices: int, batch: int) -> PlanningProblem:
    """A problem in which every module may have every tensor-parallel size: the U-Net's five heads allow only one."""
    config = Workload(model, data, batch)
    problem = make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), devices)
    modules = tuple(dataclasses.replace(module, tensor_splits=()) for module in problem.graph.modules)
    return dataclasses.replace(problem, graph=ModuleGraph(modules), chunk_choices=(1,))


def _timed(call: Callable[[PlanningProblem], Any], problem: PlanningProblem, repeats: int) -> tuple[float, Any]:
    """The least processor seconds of several runs, each of which finds tables and rows but nothing else computed."""
    times = []
    for _ in range(repeats):
        fresh = problem.with_devices(problem.devices) if repeats > 1 else problem
        start = time.process_time()
        result = call(fresh)
        times.append(time.process_time() - start)
    return min(times), result


def _difference(problem: PlanningProblem) -> float:
    convex = relaxed_problems(problem)[-1]
    solution, shares = convex.solve(problem.devices)
    fits = np.flatnonzero(np.isfinite(solution))
    chosen = fits[np.linspace(0, len(fits) - 1, COMPARED).astype(int)]
    return max(abs(solution[i] / solve_by_scipy(convex, i, problem.devices, shares[i]) - 1) for i in chosen)


def solve_by_scipy(convex: RelaxedProblems, index: int, devices: int, hint: np.ndarray) -> float:
    """The optimum of one candidate by sequential quadratic programming, in shares of the devices.

    It stops short of the optimum here and there, so it starts twice, once where an optimum is said to be; and within
    its tolerance it may overdraw, so what it finds is paid with the devices there are.
    """
    work, warm, least = (part[index] / devices for part in (convex.device_seconds, convex.fill, convex.min_devices))
    steady, fastest = convex.steady_microbatches[index], convex.min_stage_seconds[index]
    scale = convex.constant_fill[index] + steady * max(work.sum(), fastest) + warm.sum() * len(warm)
    count = len(work)

    def seconds(point: np.ndarray) -> float:
        return (convex.constant_fill[index] + (warm / point[:count]).sum() + steady * point[count] * scale) / scale

    constraints = [
        {"type": "ineq", "fun": lambda point: 1 - point[:count].sum()},
        {"type": "ineq", "fun": lambda point: point[count] - work / point[:count] / scale},
    ]
    room = 1 - least.sum()
    even = least + room * np.maximum(work, 1e-6) / np.maximum(work, 1e-6).sum()
    bounds = [*((low, 1.0) for low in least), (fastest / scale, None)]
    options = {"ftol": 1e-14, "maxiter": 1000}
    best = np.inf
    for start in (even, hint / devices):
        slowest = max((work / start).max(), fastest) / scale
        solved = scipy.optimize.minimize(
            seconds, [*start, slowest], method="SLSQP", bounds=bounds, constraints=constraints, options=options
        )
        point = np.maximum(solved.x[:count], least)
        point = least + (point - least) * min(1.0, room / max((point - least).sum(), 1e-300))
        steady_seconds = steady * max((work / point).max(), fastest)
        best = min(best, float(convex.constant_fill[index] + (warm / point).sum() + steady_seconds))
    return best


def _row(name: str, value: float, goal: float | None = None, paper: float | None = None) -> dict[str, Any]:
    met = None if goal is None else bool(value <= goal)
    return {"name": name, "value": value, "goal": goal, "met": met, "paper": paper}
