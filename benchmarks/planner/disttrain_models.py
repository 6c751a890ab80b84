"""DistTrain's models on up to 1,296 A800: simulated MFU, and throughput against the rigid layout."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig
from configs.clusters import Link
from configs.workloads import SyntheticData, Workload
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.policies import disaggregated, rigid
from sharding.planners.policies.best_plan import best_simulated
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
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
DATA_SHEET_NVLINK = Link(200e9, 3e-6)
"""NVIDIA's data sheet of the A800 80GB SXM: 400 GB/s in both directions together; DistTrain's nodes have 300 GB/s."""

PAPER_MFU, PAPER_RATIO = 0.547, 2.2
MFU_GOALS = {"mllm_9b": 0.47, "mllm_15b": 0.47, "mllm_72b": 0.509}
FROZEN_SLACK = 0.02
"""Difference by which the MFU may be below its goal where parts are frozen."""
WHOLE_SQUARES_GOALS = {"mllm_72b": 0.543}
"""Goals of the MFU with whole squares, where everything trains."""


def simulate_model(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Returns the rows of a model."""
    rows = []
    for setting, trainable in SETTINGS.items():
        config = Workload(model, data, BATCH, trainable)
        problem = make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), DEVICES)
        stiff = best_simulated(problem, rigid.plans(problem, RIGID_PP[name]))
        best = best_simulated(problem, disaggregated.plans(problem))
        for label, timeline in (("as drawn", best.timeline), ("reordered", simulate_reordered(problem, best.plan))):
            rows += _rows(f"{name}, {setting}, {label}", timeline, stiff, name, setting)
        if setting == "all trained":
            rows += _rows_where_hops_occupy_no_device(f"{name}, {setting}", problem, best.plan)
        rows.append(_row(f"{name}, {setting}, rigid: MFU", stiff.timeline.mfu))
        rows.append(_row(f"{name}, {setting}, rigid: MFU, squares whole", stiff.timeline.mfu_whole_squares))
        rows.append(_row(f"{name}, {setting}, rigid: devices", stiff.plan.device_count))
    return rows


def explain_difference(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the simulated MFU without costs that the paper's system does not have, or hides."""
    config = Workload(model, data, BATCH)
    problem = make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), DEVICES)
    mean = RowLoadStatistics({module: problem.data.mean_load(module)[None] for module in problem.graph.names})
    alike = dataclasses.replace(problem, data=mean)
    variants = {
        "all rows alike": alike,
        "all rows alike, tensor collectives hidden": _with_links(alike, intra_node=Link(1e18, 0.0)),
        "the data sheet's NVLink": _with_links(problem, intra_node=DATA_SHEET_NVLINK),
        "nothing waits for links between nodes": _with_links(problem, inter_node=Link(1e18, 0.0)),
    }
    rows = []
    for label, variant in variants.items():
        best = best_simulated(variant, disaggregated.plans(variant))
        paper = PAPER_MFU if name == "mllm_72b" else None
        rows.append(_row(f"{name}, all trained, {label}: MFU", best.timeline.mfu))
        rows.append(_row(f"{name}, all trained, {label}: MFU, squares whole", best.timeline.mfu_whole_squares, paper))
    return rows


def _with_links(problem: PlanningProblem, **links: Link) -> PlanningProblem:
    """The problem on devices with other links."""
    costs, cluster = problem.costs, dataclasses.replace(problem.cluster, **links)
    assert isinstance(costs, AnalyticCostModel)
    return dataclasses.replace(problem, cluster=cluster, costs=dataclasses.replace(costs, cluster=cluster))


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


def _rows_where_hops_occupy_no_device(label: str, problem: PlanningProblem, plan: Plan) -> list[dict[str, Any]]:
    """Rows of a plan where hops occupy no device, and of the plan that is made for that."""
    asynchronous = dataclasses.replace(problem, hops="asynchronous")
    made_for_it = best_simulated(asynchronous, disaggregated.plans(asynchronous))
    title = f"{label}, planned where hops occupy no device"
    without = asynchronous.simulate(plan)
    return [
        _row(f"{label}, where hops occupy no device: MFU", without.mfu),
        _row(f"{label}, where hops occupy no device: MFU, squares whole", without.mfu_whole_squares),
        _row(f"{title}: MFU", made_for_it.timeline.mfu),
        _row(f"{title}: MFU, squares whole", made_for_it.timeline.mfu_whole_squares),
        _row(f"{title}: devices", made_for_it.plan.device_count),
        _row(f"{title}, where hops occupy both ends: MFU", problem.simulate(made_for_it.plan).mfu),
    ]


def simulate_reordered(problem: PlanningProblem, plan: Plan) -> Timeline:
    """Simulates a step of a plan on the drawn rows in the order of `sharding.balancing.reordering.row_reorderer`."""
    order = RowReorderer(
        ResolvedPlan(plan, problem.graph, problem.trained_parts), problem.costs, rendezvous=problem.rendezvous
    ).row_order(problem.sampled_rows)
    return problem.simulate(plan, rows={name: loads[order] for name, loads in problem.sampled_rows.items()})


def _row(name: str, value: float, paper: float | None = None, goal: float | None = None) -> dict[str, Any]:
    met = None if goal is None else value >= goal
    return {"name": name, "value": float(value), "goal": goal, "met": met, "paper": paper}
