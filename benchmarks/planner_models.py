"""DistTrain's models on up to 1,296 A800: simulated MFU, and throughput against the rigid layout."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS, Link
from configs.workloads import SyntheticData, Workload
from mmjax.planning import make_problem, workload_statistics
from sharding.balancing.arrangement import Arranger
from sharding.data_statistics import DataStatistics
from sharding.plan import Plan
from sharding.planners import disaggregated, rigid
from sharding.planners.policies import Rehearsed, rehearsed_best
from sharding.planners.problem import Problem
from sharding.timeline import Timeline

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


def simulate_model(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the table."""
    rows = []
    for setting, trainable in SETTINGS.items():
        config = Workload(model, data, BATCH, trainable)
        problem = make_problem(config, workload_statistics(config), CLUSTERS["a800"], DEVICES)
        stiff = rehearsed_best(problem, rigid.plans(problem, RIGID_PP[name]))
        best = rehearsed_best(problem, disaggregated.plans(problem))
        for label, timeline in (("as drawn", best.timeline), ("reordered", reordered(problem, best.plan))):
            rows += _rows(f"{name}, {setting}, {label}", timeline, stiff, name, setting)
        rows.append(_row(f"{name}, {setting}, rigid: MFU", stiff.timeline.mfu))
        rows.append(_row(f"{name}, {setting}, rigid: devices", stiff.plan.device_count))
    return rows


def explain_difference(name: str, model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """What the simulated MFU would be without what the paper's system has not, or hides: rows of the table."""
    config = Workload(model, data, BATCH)
    problem = make_problem(config, workload_statistics(config), CLUSTERS["a800"], DEVICES)
    mean = DataStatistics({module: problem.data.mean(module)[None] for module in problem.graph.names})
    alike = dataclasses.replace(problem, data=mean)
    free = dataclasses.replace(problem.cluster, inside=Link(1e18, 0.0))
    hidden = dataclasses.replace(alike, costs=dataclasses.replace(problem.costs, cluster=free))
    found = []
    for label, of in (("all rows alike", alike), ("all rows alike, tensor collectives hidden", hidden)):
        best = rehearsed_best(of, disaggregated.plans(of))
        found.append(_row(f"{name}, all trained, {label}: MFU", best.timeline.mfu, PAPER_MFU))
    return found


def _rows(label: str, timeline: Timeline, stiff: Rehearsed, name: str, setting: str) -> list[dict[str, Any]]:
    whole = (name, setting) == ("mllm_72b", "all trained")
    return [
        _row(f"{label}: MFU", timeline.mfu, PAPER_MFU if whole else None),
        _row(f"{label}: devices", timeline.groups.device_count, 1172 if whole else None),
        _row(
            f"{label}: throughput over rigid",
            timeline.tokens_per_second / stiff.timeline.tokens_per_second,
            PAPER_RATIO if setting == "all trained" else None,
        ),
    ]


def reordered(problem: Problem, plan: Plan) -> Timeline:
    """A step of a plan on the drawn rows in the order of `sharding.balancing.arrangement`."""
    order = Arranger(plan, problem.graph, problem.costs, problem.trains).order(problem.drawn)
    return problem.rehearse(plan, rows={name: loads[order] for name, loads in problem.drawn.items()})


def _row(name: str, value: float, paper: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": float(value), "goal": None, "met": None, "paper": paper}
