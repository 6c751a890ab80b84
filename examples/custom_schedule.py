"""A pipeline schedule of your own: 1F1B with more microbatches in flight, so that hops are hidden.

    python examples/custom_schedule.py

compares it with 1F1B and GPipe on a simulated cluster. For the commands, in the folder of this file (copy it and
custom_schedule.gin), with a plan file that says "schedule": "eager_1f1b":

    python -m mmjax.simulate --gin_file=custom_schedule.gin --plan=plan.json
    python -m mmjax.train --gin_file=custom_schedule.gin --plan=plan.json
"""

import dataclasses

import mmjax
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.list_scheduling import list_schedule
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule

NAME = "eager_1f1b"


def max_in_flight(op_graph: OpGraph) -> InFlightLimits:
    """Most microbatches in flight on each rank i of a chain of p stages: 2 (p - i) - 1, where 1F1B has p - i."""
    graph = op_graph.stage_graph
    return {rank: 2 * graph.heights[stages[0]] - 1 for rank, stages in graph.stages_of.items()}


def eager_1f1b(op_graph: OpGraph, limits: InFlightLimits) -> Schedule:
    """Eager 1F1B (arXiv 2211.05322, section 4): a backward as soon as one is ready, else the next forward."""
    depths = op_graph.stage_graph.depths

    def priority(op: PipelineOp) -> tuple[bool, int, int]:  # the least is the most urgent
        return op.kind != "backward", op.microbatch, -depths[op.stage_id]

    return list_schedule(op_graph, limits, priority)


mmjax.register_schedule(NAME, eager_1f1b, max_in_flight)


def main() -> None:
    """Prints the simulated step and the peak memory of each schedule, for a 7B model in four stages."""
    vision = UnitPlan("vision", ("vision",), (0,), layers=(23,))
    backbone = UnitPlan("backbone", ("backbone",), (1, 2, 3, 4), layers=(8, 8, 8, 8), recompute=("none",) * 4)
    plan = Plan((vision, backbone), microbatches=16)
    for name in ("1f1b", "gpipe", NAME):
        timeline = mmjax.simulate(dataclasses.replace(plan, schedule=name), "models/llava_1_6_7b.gin", rows=16)
        memory = max(timeline.lane_peak_memory(lane) for lane in timeline.lanes)
        print(f"{name:10} {timeline.step:.2f} s a step, {memory / 1e9:.0f} GB on the fullest device")


if __name__ == "__main__":
    main()
