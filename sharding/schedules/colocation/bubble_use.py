"""How much of the encoders' work a schedule hides in the backbone's idle time, by the seconds of its plan."""

import dataclasses
import itertools
import math

from sharding.schedules.colocation.colocated_step import ColocatedStep, colocated_step
from sharding.schedules.ops import PipelineOp, Schedule
from sharding.schedules.pass_seconds import OpTimes, last_end, pass_times


@dataclasses.dataclass(frozen=True)
class BubbleUse:
    """The cost of encoders on a backbone's devices, in any schedule of the step.

    Attributes:
        step: Seconds of all forwards and backwards.
        backbone_alone: Seconds of the forwards and backwards without the encoders.
        efficiency: The share of the encoders' work that does not make the step longer: 1 - (step - backbone alone) *
            devices / device-seconds of the encoders, from 0 to 1.
        in_bubbles: The share of it between the backbone's first and last op (Optimus, arXiv 2408.03505, section
            5.3.2) if forwards run as late as the order allows, less the seconds by which these two are farther apart
            than without encoders; from 0 to 1.
    """

    step: float
    backbone_alone: float
    efficiency: float
    in_bubbles: float


def bubble_use(schedule: Schedule) -> BubbleUse | None:
    """Returns the cost of the encoders of a schedule; None where none shares the devices of a backbone."""
    step = colocated_step(schedule.op_graph)
    if step is None:
        return None
    times = _with_late_forwards(step, schedule, pass_times(step.op_graph, schedule.ops, schedule.bundled))
    whole, alone, devices = last_end(times), step.timeline.end, len(step.op_graph.stage_graph.all_devices)
    backbone_intervals = [interval for op, interval in times.items() if op.unit not in step.units.encoders]
    begin, end = min(start for start, _ in backbone_intervals), max(end for _, end in backbone_intervals)
    work = _encoder_work(step, times, 0.0, whole)
    if not work:
        return BubbleUse(whole, alone, 1.0, 1.0)
    inside = _encoder_work(step, times, begin, end) - max(end - begin - alone, 0.0) * devices
    efficiency = 1 - (whole - alone) * devices / work
    return BubbleUse(whole, alone, *(min(max(share, 0.0), 1.0) for share in (efficiency, inside / work)))


def _encoder_work(step: ColocatedStep, times: OpTimes, begin: float, end: float) -> float:
    """Device-seconds of the encoders between two times; what runs in a bundle counts with its own seconds."""
    graph, total = step.op_graph.stage_graph, 0.0
    for op, (start, finish) in times.items():
        if op.unit in step.units.encoders and finish > start:
            share = max(min(finish, end) - max(start, begin), 0.0) / (finish - start)
            devices = len(graph.rank_devices[graph.rank_of_microbatch(op.stage_id, op.microbatch)])
            total += step.op_graph.seconds[op.stage_id].of(op.kind) * share * devices
    return total


def _with_late_forwards(step: ColocatedStep, schedule: Schedule, times: OpTimes) -> OpTimes:
    """Returns the times with the encoders' forwards as late as the order and all other ops let them be."""
    graph, lanes, late = step.op_graph.stage_graph, step.timeline.lanes, dict(times)
    hosts = {before for before, op in itertools.pairwise(schedule.ops) if op in schedule.bundled}
    in_bundles = hosts | schedule.bundled
    next_start = [math.inf] * len(graph.device_classes)
    for op in reversed([op for op in schedule.ops if op in times]):
        op_lanes = lanes[graph.rank_of_microbatch(op.stage_id, op.microbatch)]
        start, end = late[op]
        if op.kind == "forward" and op.unit in step.units.encoders and op not in in_bundles:
            followers = [PipelineOp("forward", *target, op.microbatch) for target in graph.targets[op.stage_id]]
            due = min(*(next_start[lane] for lane in op_lanes), *(late[follower][0] for follower in followers))
            start, end = late[op] = (due - (end - start), due) if due > end else (start, end)
        for lane in op_lanes:
            next_start[lane] = start
    return late
