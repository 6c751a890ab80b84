"""How long the comparison of all policies takes, how near estimates are to simulated steps, and MFU on few devices."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.schedule_fields import scheduled_plan
from sharding.planners.layouts.step_estimate import StepEstimate
from sharding.planners.policies.auto import run_policy
from sharding.planners.policies.disaggregated import ROOMY
from sharding.planners.policies.policy_comparison import compare_policies
from sharding.planners.problem import PlanningProblem

FEW_DEVICES, FEW_ROWS = 96, {"mllm_9b": 128, "mllm_15b": 64, "mllm_72b": 40}
"""Devices, and DistTrain's batches on so many."""

TIMED = {(1296, 1920): 4.0, (100_000, 122_880): 20.0}
"""Seconds that all policies may take on so many devices with so many rows."""

LAYOUTS = 8


def measure_comparisons(model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the processor seconds from a model to its chosen plan, without the import of packages."""
    rows = []
    for (devices, batch), goal in TIMED.items():
        start = time.process_time()
        compare_policies(_problem(model, data, devices, batch))
        seconds = time.process_time() - start
        rows.append(
            _row(f"seconds of all policies: {devices:,} devices, batch {batch:,}", seconds, goal, seconds <= goal)
        )
    return rows


def measure_estimates(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the mean error of the search's objective, and of the estimate, on the best layouts."""
    problem = _problem(model, data, 1296, 1920)
    layouts, estimate = search_layouts(problem, LAYOUTS, extra=ROOMY), StepEstimate(problem)
    steps = np.array([problem.simulate(scheduled_plan(problem, layout)).step for layout in layouts])
    kinds: dict[str, Callable] = {"objective": lambda layout: layout.seconds, "estimate": estimate.seconds}
    return [
        _row(
            f"{name}, mean error of the {kind} on the {LAYOUTS} best layouts",
            float(np.abs(np.array([seconds(layout) for layout in layouts]) / steps - 1).mean()),
        )
        for kind, seconds in kinds.items()
    ]


def measure_few_devices(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the policies' MFU on few devices; `disaggregated` should not be below `ratio`."""
    problem = _problem(model, data, FEW_DEVICES, FEW_ROWS[name])
    policies = ("rigid", "ratio", "disaggregated")
    timelines = {policy: run_policy(problem, policy).timeline for policy in policies}
    goal, rows = timelines["ratio"].mfu, []
    for policy, timeline in timelines.items():
        label = f"{name}, at most {FEW_DEVICES} devices, batch {problem.rows}, {policy}"
        has_goal = policy == "disaggregated"
        rows.append(
            _row(f"{label}: MFU", timeline.mfu, goal if has_goal else None, timeline.mfu >= goal if has_goal else None)
        )
        rows.append(_row(f"{label}: MFU, squares whole", timeline.mfu_whole_squares))
    return rows


def _problem(model: ModelConfig, data: SyntheticData, devices: int, batch: int) -> PlanningProblem:
    config = Workload(model, data, batch)
    return make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), devices)


def _row(name: str, value: float, goal: float | None = None, met: bool | None = None) -> dict[str, Any]:
    return {"name": name, "value": float(value), "goal": goal, "met": met, "paper": None}
