"""MLLM-72B in the schedule ZB-H1: the layout that is planned for 1F1B, simulated with split backwards."""

import dataclasses
from typing import Any

from benchmarks.planner.disttrain_models import BATCH, DEVICES
from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.planners.policies import disaggregated
from sharding.planners.policies.best_plan import best_simulated


def measure_zero_bubble(model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Rows of the table: MFU, and the most gigabytes on a device of the backbone."""
    config = Workload(model, data, BATCH)
    problem = make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), DEVICES)
    planned = best_simulated(problem, disaggregated.plans(problem)).plan
    rows = []
    for plan in (planned, dataclasses.replace(planned, schedule="zb-h1")):
        timeline = problem.simulate(plan)
        lanes = [lane for lane in timeline.lanes if lane.rank[0] == problem.graph.backbone.name]
        most = max(timeline.lane_peak_memory(lane) for lane in lanes)
        where = f"mllm_72b, all trained, {plan.schedule}"
        rows += [_row(f"{where}: MFU", timeline.mfu), _row(f"{where}: peak memory of the backbone, GB", most / 1e9)]
    return rows


def _row(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": float(value), "goal": None, "met": None, "paper": None}
