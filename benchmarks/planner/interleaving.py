"""MLLM-72B, its backbone interleaved before a generator: how far a step is from the least that its devices allow.

All rows are alike, so nothing is lost to stragglers. `by slots` is the order in which all ops count as equally long.
"""

import dataclasses
from typing import Any

from configs.architectures import ModelConfig
from configs.workloads import SyntheticData, Workload
from mmjax.planning.cluster_files import read_cluster
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.planners.layouts.placement import make_unit, place_units
from sharding.planners.layouts.schedule_fields import with_stage_seconds
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.specs.row_load_statistics import RowLoadStatistics

BATCH, DP, TP, PP, CHUNKS = 1920, 60, 4, 5, 2
GENERATORS = {"as slow as the backbone's ranks": DP, "ten times as fast": 10 * DP}
"""Replicas of the generator, each of which draws the images of its share of a row."""

EXTRA = (0, 1, 2, 4)
"""Microbatches that the encoder and the backbone may hold beyond the schedule's limits."""

GOAL = 1.10


def measure_interleaving(model: ModelConfig, data: SyntheticData) -> list[dict[str, Any]]:
    """Returns the rows of the interleaved backbone."""
    config = Workload(model, data, BATCH)
    drawn = make_problem(config, workload_statistics(config), read_cluster("disttrain_a800"), 10_000)
    mean = {name: drawn.data.mean_load(name)[None] for name in drawn.graph.names}
    problem = dataclasses.replace(drawn, data=RowLoadStatistics(mean))
    rows = []
    for speed, replicas in GENERATORS.items():
        for chunks in (1, CHUNKS):
            plan = _plan(problem, replicas, chunks)
            where = f"generator {speed}, {chunks} chunk{'s' * (chunks > 1)}"
            rows.append(_row(problem, f"{where}, by slots", plan))
            for extra in EXTRA:
                order = "by seconds" if chunks > 1 else "by slots"
                if chunks > 1 or extra:
                    goal = GOAL if chunks > 1 and extra == EXTRA[-1] else None
                    scheduled = _with_extra(with_stage_seconds(problem, plan), extra)
                    rows.append(_row(problem, f"{where}, {order}, {extra} more in flight", scheduled, goal))
    return rows


def _plan(problem: PlanningProblem, generator_replicas: int, chunks: int) -> Plan:
    vision, backbone, generator = problem.graph.modules
    layers = (backbone.layer_count // (PP * chunks),) * (PP * chunks)
    units = [
        make_unit((vision.name,), dp=DP, tp=1, layers=(vision.layer_count,), recompute="none"),
        make_unit((backbone.name,), dp=DP, tp=TP, layers=layers, recompute="none", chunks=chunks, collectives="ring"),
        make_unit((generator.name,), dp=generator_replicas, tp=1, layers=(1,), recompute="none"),
    ]
    return place_units(units, BATCH // DP)


def _with_extra(plan: Plan, microbatches: int) -> Plan:
    vision, backbone, generator = plan.units
    raised = (
        vision.with_hints(extra_microbatches=microbatches),
        backbone.with_hints(extra_microbatches=microbatches * backbone.parallelism.chunks),
    )
    return dataclasses.replace(plan, units=(*raised, generator))


def _row(problem: PlanningProblem, name: str, plan: Plan, goal: float | None = None) -> dict[str, Any]:
    ratio = float(problem.simulate(plan).step / problem.least_step_seconds(plan))
    met = None if goal is None else ratio <= goal
    return {"name": f"step over its lower bound: {name}", "value": ratio, "goal": goal, "met": met, "paper": None}
