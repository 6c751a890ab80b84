"""DistTrain's models on up to 1,296 A800: simulated MFU, and throughput against the rigid layout."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS, Link
from configs.workloads import SyntheticData, Workload
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.planners import disaggregated, rigid
from sharding.planners.auto import SimulatedPlan, best_simulated
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.simulation.timeline import Timeline
from sharding.specs.row_load_statistics import RowLoadStatistics

DEVICES, BATCH = 1296, 1920
RIGID_PP = {"mllm_9b": 1, "mllm_15b": 2, "mllm_72b": 10}
"""Pipeline stages of the backbone in DistTrain's Megatron-LM baseline."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "all trained": ("all",),
    "projectors trained": ("projectors",),
    "encoder trained": ("projectors", "vision"),
    "backbone trained": ("projectors", "backbone"),
    "generator trained": ("projectors", "generator"),
}
PAPER_MFU, PAPER_RATIO = 0.547, 2.2
MFU_GOALS = {"mllm_9b": 0.47, "mllm_15b": 0.47, "mllm_72b": 0.509}
FROZEN_SLACK = 0.02
"""By how much the MFU may be below its goal where parts are frozen."""
WHOLE_SQUARES_GOALS = {"mllm_72b": 0.543}
"""Where everything trains."""


def simulate_model(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """The rows of the table."""
    rows = []
    for setting, trainable in SETTINGS.items():
        config = Workload(model, data, BATCH, trainable)
        problem = make_problem(config, workload_statistics(config), CLUSTERS["a800"], DEVICES)
        stiff = best_simulated(problem, rigid.plans(problem, RIGID_PP[name]))
        best = best_simulated(problem, disaggregated.plans(problem))
        for label, timeline in (("as drawn", best.timeline), ("reordered", simulate_reordered(problem, best.plan))):
            rows += _rows(f"{name}, {setting}, {label}", timeline, stiff, name, setting)
        rows.append(_row(f"{name}, {setting}, rigid: MFU", stiff.timeline.mfu))
        rows.append(_row(f"{name}, {setting}, rigid: MFU, squares whole", stiff.timeline.mfu_whole_squares))
        rows.append(_row(f"{name}, {setting}, rigid: devices", stiff.plan.device_count))
    return rows


def explain_difference(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the simulated MFU without the costs that the paper's system does not have, or hides."""
    config = Workload(model, data, BATCH)
    problem = make_problem(config, workload_statistics(config), CLUSTERS["a800"], DEVICES)
    mean = RowLoadStatistics({module: problem.data.mean_load(module)[None] for module in problem.graph.names})
    alike = dataclasses.replace(problem, data=mean)
    free = dataclasses.replace(problem.cluster, intra_node=Link(1e18, 0.0))
    hidden = dataclasses.replace(alike, costs=dataclasses.replace(problem.costs, cluster=free))
    found = []
    for label, of in (("all rows alike", alike), ("all rows alike, tensor collectives hidden", hidden)):
        best = best_simulated(of, disaggregated.plans(of))
        found.append(_row(f"{name}, all trained, {label}: MFU", best.timeline.mfu))
        found.append(
            _row(f"{name}, all trained, {label}: MFU, squares whole", best.timeline.mfu_whole_squares, PAPER_MFU)
        )
    return found


def _rows(label: str, timeline: Timeline, stiff: SimulatedPlan, name: str, setting: str) -> list[dict[str, Any]]:
    trains_all = setting == "all trained"
    in_paper = trains_all and name == "mllm_72b"
    goal = MFU_GOALS[name] - (0.0 if trains_all else FROZEN_SLACK)
    whole_goal = WHOLE_SQUARES_GOALS.get(name) if trains_all else None
    return [
        _row(f"{label}: MFU", timeline.mfu, goal=goal),
        _row(f"{label}: MFU, squares whole", timeline.mfu_whole_squares, PAPER_MFU if in_paper else None, whole_goal),
        _row(f"{label}: devices", timeline.groups.device_count, 1172 if in_paper else None),
        _row(
            f"{label}: throughput over rigid",
            timeline.tokens_per_second / stiff.timeline.tokens_per_second,
            PAPER_RATIO if trains_all else None,
        ),
    ]


def simulate_reordered(problem: PlanningProblem, plan: Plan) -> Timeline:
    """Simulates a step of a plan on the drawn rows in the order of `sharding.balancing.reordering.row_reorderer`."""
    order = RowReorderer(plan, problem.graph, problem.costs, problem.trained_parts).row_order(problem.sampled_rows)
    return problem.simulate(plan, rows={name: loads[order] for name, loads in problem.sampled_rows.items()})


def _row(name: str, value: float, paper: float | None = None, goal: float | None = None) -> dict[str, Any]:
    met = None if goal is None else value >= goal
    return {"name": name, "value": float(value), "goal": goal, "met": met, "paper": paper}
