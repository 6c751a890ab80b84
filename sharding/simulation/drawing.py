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
    lanes, idle = timeline.lanes, _LaneIdle(timeline)
    ops: list[list[DrawnOp]] = [[] for _ in lanes]
    for number, span in enumerate(timeline.spans):
        if span.op.kind in TRANSFERS and not timeline.rendezvous:
            continue
        for lane in idle.lanes_of(span.op):
            ops[lane].append(_drawn_op(span, lanes[lane], idle.before(number, lane)))
    return tuple(
        DrawnLane(lane, tuple(sorted(ops[number], key=lambda op: op.start)), idle.before(-1, number))
        for number, lane in enumerate(lanes)
    )


def drawn_hops(timeline: Timeline) -> Iterator[DrawnHop]:
    """All hops of activations and gradients."""
    lane_of = _lane_numbers(timeline)
    for span in timeline.spans:
        if span.op.kind in ("hop", "hop_back"):
            source, target = lane_of[span.op.stage_id], lane_of[span.op.target_id]
            yield DrawnHop(span.op, source, target, float(span.start.mean()), float(span.end.mean()))


def _lane_numbers(timeline: Timeline) -> dict[StageId, int]:
    return {stage: number for number, lane in enumerate(timeline.lanes) for stage in lane.stages}


def _drawn_op(span: Span, lane: Lane, idle_before: Mapping[IdleCause, float]) -> DrawnOp:
    ends = (span.op.stage_id, span.op.target_id)
    return DrawnOp(
        op=span.op,
        chunk=next((number for number, stage in enumerate(lane.stages) if stage in ends), -1),
        start=float(span.start.mean()),
        end=float(span.end.mean()),
        communication=float(span.communication.mean()),
        slowest=float(span.seconds.max()),
        idle_before=idle_before,
    )


class _LaneIdle:
    """Idle time before every span, the mean over the devices of a lane."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lane_of = _lane_numbers(timeline)
        self._seconds: dict[tuple[int, int], dict[IdleCause, float]] = collections.defaultdict(dict)
        for period in timeline.idle_periods:
            if not period.within_span:
                self._add(period)

    def lanes_of(self, op: PipelineOp) -> list[int]:
        """Numbers of the lanes on whose devices an op runs."""
        if op.kind == "norm":
            return list(range(len(self._timeline.lanes)))
        ends = (op.stage_id, op.target_id)
        return list(dict.fromkeys(self._lane_of[stage] for stage in ends if stage in self._lane_of))

    def before(self, span: int, lane: int) -> Mapping[IdleCause, float]:
        """Idle seconds of a lane before a span, by cause; before span -1, those at the end of the step."""
        return self._seconds.get((span, lane), {})

    def _add(self, period: IdlePeriod) -> None:
        groups, lanes = self._timeline.groups, self._timeline.lanes
        affected = range(len(lanes)) if period.span < 0 else self.lanes_of(self._timeline.spans[period.span].op)
        for cause, seconds in period.seconds.items():
            if seconds.any():
                by_group = np.zeros(len(groups.sizes))
                np.add.at(by_group, period.groups, seconds)
                for lane in affected:
                    mean = groups.stage_mean(lanes[lane].stages[0], by_group)
                    if mean:
                        self._seconds[period.span, lane][cause] = mean
