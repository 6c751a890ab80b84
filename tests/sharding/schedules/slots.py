"""Schedules counted in slots of equal length, as the textbooks draw them."""

import collections

from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import PipelineOp, Schedule


def op_slots(schedule: Schedule) -> dict[PipelineOp, int]:
    """The slot of every forward and backward, if each takes one, as early as possible; other ops take none."""
    op_graph = schedule.op_graph
    free: dict[int, int] = collections.defaultdict(int)
    finished: dict[PipelineOp, int] = {}
    slots: dict[PipelineOp, int] = {}
    for op in schedule.ops:
        start = max((finished[dependency] for dependency in op_graph.dependencies[op]), default=0)
        if op.kind in ("forward", "backward"):
            devices = op_graph.devices_of(op)
            slots[op] = start = max(start, *(free[device] for device in devices))
            free |= dict.fromkeys(devices, start + 1)
        finished[op] = start + (op in slots)
    return slots


def bubble_slots(schedule: Schedule) -> dict[StageId, int]:
    """For every stage, the slots of the pass in which none of its devices computes."""
    slots, graph = op_slots(schedule), schedule.op_graph.stage_graph
    length = 1 + max(slots.values())
    busy: dict[int, set[int]] = collections.defaultdict(set)
    for op, slot in slots.items():
        for device in graph.devices[op.stage_id]:
            busy[device].add(slot)
    return {
        stage: length - len(set().union(*(busy[device] for device in devices)))
        for stage, devices in graph.devices.items()
    }
