"""What there is to draw of a timeline: each lane's ops as means over replicas, the idle time between, and the hops."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import TRANSFERS, PipelineOp
from sharding.simulation.idle_time import IdleCause, IdlePeriod
from sharding.simulation.spans import Span
from sharding.simulation.timeline import Lane, Timeline


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnOp:
    """An op on one lane; all times are in seconds and means over the lane's replicas.

    Attributes:
        op: The op.
        chunk: Which of the lane's stages it belongs to, or -1.
        start: Seconds since the step began.
        end: Seconds since the step began.
        communication: Seconds between them spent waiting for other ranks of the unit.
        slowest: Seconds that the op took on its slowest replica.
        idle_before: Idle seconds of the lane's devices before it, by cause.
    """

    op: PipelineOp
    chunk: int
    start: float
    end: float
    communication: float
    slowest: float
    idle_before: Mapping[IdleCause, float]


@dataclasses.dataclass(frozen=True)
class DrawnLane:
    """A lane, its ops in order, and its idle seconds after the last of them, by cause."""

    lane: Lane
    ops: tuple[DrawnOp, ...]
    idle_after: Mapping[IdleCause, float]


@dataclasses.dataclass(frozen=True)
class DrawnHop:
    """A hop between lanes.

    Attributes:
        op: The hop.
        source: Number of the sending lane.
        target: Number of the receiving lane.
        start: Seconds since the step began, the mean over replicas.
        end: Seconds since the step began, the mean over replicas.
    """

    op: PipelineOp
    source: int
    target: int
    start: float
    end: float


def drawn_lanes(timeline: Timeline) -> tuple[DrawnLane, ...]:
    """All lanes. The norm is in every lane; a hop that occupies devices is in the lanes of both its ends."""
    lanes, places = timeline.lanes, _LaneNumbers(timeline)
    idle = _LaneIdle(timeline, places)
    ops: list[list[DrawnOp]] = [[] for _ in lanes]
    for number, span in enumerate(timeline.spans):
        if span.op.kind in TRANSFERS and not timeline.rendezvous:
            continue
        for lane in places.of_op(span.op):
            ops[lane].append(_drawn_op(span, lanes[lane], idle.before(number, lane)))
    return tuple(
        DrawnLane(lane, tuple(sorted(ops[number], key=lambda op: op.start)), idle.before(-1, number))
        for number, lane in enumerate(lanes)
    )


def drawn_hops(timeline: Timeline) -> Iterator[DrawnHop]:
    """All hops of activations and gradients."""
    places = _LaneNumbers(timeline)
    for span in timeline.spans:
        if span.op.kind in ("hop", "hop_back"):
            source, target = places.ends(span.op)
            yield DrawnHop(span.op, source, target, float(span.start.mean()), float(span.end.mean()))


class _LaneNumbers:
    """Which lanes ops run in."""

    def __init__(self, timeline: Timeline) -> None:
        self._graph, self._count = timeline.op_graph.stage_graph, len(timeline.lanes)
        self._number = {lane.rank: number for number, lane in enumerate(timeline.lanes)}

    def _of_stage(self, stage: StageId, microbatch: int) -> list[int]:
        """Of a stage, for one microbatch or, if it is -1, of all copies."""
        ranks = self._graph.ranks_of.get(stage, ())
        return [
            self._number[rank] for rank in ranks if microbatch < 0 or rank == self._graph.rank_at(stage, microbatch)
        ]

    def ends(self, hop: PipelineOp) -> tuple[int, int]:
        """The lanes that send and receive."""
        (source,), (target,) = (self._of_stage(stage, hop.microbatch) for stage in (hop.stage_id, hop.target_id))
        return source, target

    def of_op(self, op: PipelineOp) -> list[int]:
        """All lanes on whose devices an op runs."""
        if op.kind == "norm":
            return list(range(self._count))
        ends = (op.stage_id, op.target_id)
        return list(dict.fromkeys(lane for stage in ends for lane in self._of_stage(stage, op.microbatch)))


def _drawn_op(span: Span, lane: Lane, idle_before: Mapping[IdleCause, float]) -> DrawnOp:
    ends, of_lane = (span.op.stage_id, span.op.target_id), _replicas_in(lane, span)
    return DrawnOp(
        op=span.op,
        chunk=next((number for number, stage in enumerate(lane.stages) if stage in ends), -1),
        start=float(span.start[of_lane].mean()),
        end=float(span.end[of_lane].mean()),
        communication=float(span.communication[of_lane].mean()),
        slowest=float(span.seconds[of_lane].max()),
        idle_before=idle_before,
    )


def _replicas_in(lane: Lane, span: Span) -> slice:
    """The replicas of an op that are a lane's; an op that runs once per step has those of all copies."""
    replicas_are_of = span.op.target_id if span.op.kind in TRANSFERS else span.op.stage_id
    if span.op.microbatch >= 0 or replicas_are_of not in lane.stages:
        return slice(None)
    return slice(lane.copy * lane.replicas, (lane.copy + 1) * lane.replicas)


class _LaneIdle:
    """Idle time before every span, the mean over the devices of a lane."""

    def __init__(self, timeline: Timeline, places: _LaneNumbers) -> None:
        self._timeline, self._places = timeline, places
        self._seconds: dict[tuple[int, int], dict[IdleCause, float]] = collections.defaultdict(dict)
        for period in timeline.idle_periods:
            if not period.within_span:
                self._add(period)

    def before(self, span: int, lane: int) -> Mapping[IdleCause, float]:
        """Idle seconds of a lane before a span, by cause; before span -1, those at the end of the step."""
        return self._seconds.get((span, lane), {})

    def _add(self, period: IdlePeriod) -> None:
        groups, of_lanes = self._timeline.groups, self._timeline.groups_of_lanes
        is_rest = period.span < 0
        affected = range(len(of_lanes)) if is_rest else self._places.of_op(self._timeline.spans[period.span].op)
        for cause, seconds in period.seconds.items():
            if seconds.any():
                by_group = np.zeros(len(groups.sizes))
                np.add.at(by_group, period.groups, seconds)
                for lane in affected:
                    mean = groups.mean_over(of_lanes[lane], by_group)
                    if mean:
                        self._seconds[period.span, lane][cause] = mean
