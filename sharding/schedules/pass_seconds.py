"""Seconds of a schedule's ops of `COMPUTE_KINDS`, by the seconds of their stages, where hops take none.

Schedules that know the seconds of stages compare orders of ops by these seconds.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, OpKind, PipelineOp, Schedule

OpTimes = dict[PipelineOp, tuple[float, float]]
"""Start and end of every op of `COMPUTE_KINDS`."""


def pass_seconds(schedule: Schedule) -> float:
    """Seconds from the first forward to the end of the last op, if each starts as soon as its schedule allows.

    A bundle starts when both its ops can, and both end with it (`bundle_seconds`).

    Args:
        schedule: A schedule whose op graph has the seconds of every stage.
    """
    return last_end(pass_times(schedule.op_graph, schedule.ops, schedule.bundled))


def last_end(times: OpTimes) -> float:
    """When the last op ends; 0 if there is none."""
    return max((end for _, end in times.values()), default=0.0)


def pass_times(op_graph: OpGraph, ops: Iterable[PipelineOp], bundled: frozenset[PipelineOp] = frozenset()) -> OpTimes:
    """Start and end of every op of `COMPUTE_KINDS`, if each starts as soon as an order allows.

    Args:
        op_graph: An op graph with the seconds of every stage.
        ops: All ops in order; ops of other kinds take no time.
        bundled: The ops that run in one program with the op before them, as in `Schedule`.
    """
    free, tracks = [0.0] * len(op_graph.stage_graph.device_classes), _tracks(op_graph)
    times: OpTimes = {}
    before: PipelineOp | None = None
    for op in ops:
        track = tracks.get(op[:3])
        if track is None:
            before = None
            continue
        number = op.microbatch
        op_lanes = track.lanes[number]
        host = before if op in bundled else None
        start = max([free[lane] for lane in op_lanes]) if host is None else times[host][0]
        for inputs in track.inputs:
            if inputs[number] > start:
                start = inputs[number]
        if host is None:
            end = start + track.seconds
        else:
            end = start + bundle_seconds(op_graph, host, op)
            tracks[host[:3]].ends[host.microbatch] = end
            times[host] = (start, end)
        track.ends[number] = end
        times[op] = (start, end)
        for lane in op_lanes:
            free[lane] = end
        before = op
    return times


class _Track(NamedTuple):
    """The ops of a stage and kind, by microbatch.

    Attributes:
        seconds: Seconds of each.
        lanes: The classes of devices that run each.
        ends: When each has ended.
        inputs: When the ops end that each waits for: one list for every stage that it waits for.
    """

    seconds: float
    lanes: list[tuple[int, ...]]
    ends: list[float]
    inputs: list[list[float]]


def _tracks(op_graph: OpGraph) -> dict[tuple[OpKind, str, int], _Track]:
    """The ops of `COMPUTE_KINDS` by kind, unit and number of the stage."""
    graph, lanes, microbatches = op_graph.stage_graph, device_lanes(op_graph), range(op_graph.microbatches)
    ends: dict[tuple[OpKind, StageId], list[float]]
    ends = {(kind, stage): [0.0] * len(microbatches) for stage in graph.stages for kind in COMPUTE_KINDS}
    producers = {"forward": graph.sources, "backward": graph.targets, "wgrad": dict.fromkeys(graph.stages, ())}
    tracks = {}
    for stage in graph.stages:
        stage_lanes = [lanes[graph.rank_of_microbatch(stage, number)] for number in microbatches]
        for kind in COMPUTE_KINDS:
            inputs = [ends[kind, producer] for producer in producers[kind][stage]]
            seconds = op_graph.seconds[stage].of(kind)
            tracks[kind, *stage] = _Track(seconds, stage_lanes, ends[kind, stage], inputs)
    return tracks


def bundle_seconds(op_graph: OpGraph, one: PipelineOp, other: PipelineOp) -> float:
    """Seconds of two forwards or backwards in one program: T = A + B - min(a, B - b) - min(b, A - a).

    While one of them waits for its collectives (a of A seconds, b of B), the other computes.
    """
    first, second = op_graph.seconds[one.stage_id], op_graph.seconds[other.stage_id]
    whole, waiting = first.of(one.kind), first.communication_of(one.kind)
    other_whole, other_waiting = second.of(other.kind), second.communication_of(other.kind)
    hidden = min(waiting, other_whole - other_waiting) + min(other_waiting, whole - waiting)
    return whole + other_whole - hidden


def device_lanes(op_graph: OpGraph) -> dict[tuple[str, int], tuple[int, ...]]:
    """For every pipeline rank, the numbers of its classes of devices (`StageGraph.device_classes`)."""
    graph = op_graph.stage_graph
    return {
        rank: tuple(number for number, members in enumerate(graph.device_classes) if members[0] in devices)
        for rank, devices in graph.rank_devices.items()
    }
