"""The drawable content of a timeline: the ops on each set of devices, the idle time between them, and the hops."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from jaxtyping import Float

from sharding.plans.resolved.device_groups import replicas_of_microbatch
from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.plans.text.device_ranges import device_ranges
from sharding.schedules.ops import TRANSFERS, PipelineOp
from sharding.simulation.idle.idle_time import IdleCause, IdlePeriod
from sharding.simulation.op_spans.spans import Span
from sharding.simulation.timeline import Lane, Timeline

Half = Literal["whole", "upper", "lower"]
"""Which range of a lane's height an op is drawn in; the two ops of a bundle have a half each."""

_LONGEST_RANGES = 14  # characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnOp:
    """An op on one lane; all times are in seconds and means over the lane's devices.

    Attributes:
        op: The op.
        chunk: Which of its pipeline rank's stages it belongs to, or -1.
        start: Seconds since the step began.
        end: Seconds since the step began.
        communication: Seconds between them spent waiting for other ranks of the unit.
        slowest: Seconds that the op took on its slowest replica.
        idle_before: Idle seconds of the lane's devices before it, by cause.
        half: Where it is drawn.
    """

    op: PipelineOp
    chunk: int
    start: float
    end: float
    communication: float
    slowest: float
    idle_before: Mapping[IdleCause, float]
    half: Half


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnLane:
    """Devices that belong to the same pipeline ranks, and what they run.

    Attributes:
        name: The first of its pipeline ranks; where that has several lanes, with the lane's devices.
        ranks: Its pipeline ranks, the one that computes most first.
        devices: Its devices.
        busy: Seconds in which they compute, the mean over them.
        ops: Its ops in order.
        idle_after: Idle seconds after the last of them, by cause.
    """

    name: str
    ranks: tuple[Lane, ...]
    devices: tuple[int, ...]
    busy: float
    ops: tuple[DrawnOp, ...]
    idle_after: Mapping[IdleCause, float]

    @property
    def unit(self) -> str:
        """The unit that computes most on its devices."""
        return self.ranks[0].rank[0]


@dataclasses.dataclass(frozen=True)
class DrawnHop:
    """A hop between lanes.

    Attributes:
        op: The hop.
        source: Number of the sending lane; of the first, if the sending rank has several.
        target: Number of the receiving lane, likewise.
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
    places = _Places(timeline)
    halves = _halves(timeline)
    idle = _LaneIdle(timeline, places, halves)
    ops: list[list[DrawnOp]] = [[] for _ in places.ranks]
    for number, span in enumerate(timeline.spans):
        if span.op.kind in TRANSFERS and not timeline.rendezvous:
            continue
        half = halves.get(number, "whole")
        for lane in places.of_op(span.op):
            ops[lane].append(_drawn_op(span, lane, places, idle.before(number, lane), half))
    return tuple(
        DrawnLane(
            name=places.names[number],
            ranks=ranks,
            devices=places.devices[number],
            busy=timeline.step - idle.total(number),
            ops=tuple(sorted(ops[number], key=lambda op: op.start)),
            idle_after=idle.before(-1, number),
        )
        for number, ranks in enumerate(places.ranks)
    )


def drawn_hops(timeline: Timeline) -> Iterator[DrawnHop]:
    """All hops of activations and gradients."""
    places = _Places(timeline)
    for span in timeline.spans:
        if span.op.kind in ("hop", "gradient_hop"):
            source, target = (
                places.of_stage(end, span.op.microbatch)[0] for end in (span.op.stage_id, span.op.target_id)
            )
            yield DrawnHop(span.op, source, target, float(span.start.mean()), float(span.end.mean()))


def _halves(timeline: Timeline) -> dict[int, Half]:
    """Where the ops of bundles are drawn, by the number of their span."""
    numbers = [number for number, span in enumerate(timeline.spans) if span.beside is not None]
    return {number: "upper" if turn % 2 == 0 else "lower" for turn, number in enumerate(numbers)}


class _Places:
    """The lanes of a timeline, and the ones that each op runs in.

    Attributes:
        ranks: Pipeline ranks of every lane.
        devices: Devices of every lane.
        names: Name of every lane.
        groups: Groups of devices of every lane.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline, self._graph = timeline, timeline.op_graph.stage_graph
        held = {lane.rank: frozenset(lane.devices) for lane in timeline.lanes}
        busy = {lane.rank: timeline.lane_busy(lane) for lane in timeline.lanes}
        order = {lane.rank: number for number, lane in enumerate(timeline.lanes)}
        lanes = []
        for devices in self._graph.device_classes:
            ranks = [lane for lane in timeline.lanes if devices[0] in held[lane.rank]]
            lanes.append((sorted(ranks, key=lambda lane: -busy[lane.rank]), devices))
        lanes.sort(key=lambda lane: (order[lane[0][0].rank], lane[1]))
        self.ranks = [tuple(ranks) for ranks, _ in lanes]
        self.devices = [devices for _, devices in lanes]
        lanes_of_first = collections.Counter(ranks[0].rank for ranks in self.ranks)
        self.names = [
            ranks[0].name + (f": {_short_ranges(devices)}" if lanes_of_first[ranks[0].rank] > 1 else "")
            for ranks, devices in zip(self.ranks, self.devices, strict=True)
        ]
        numbers, member_groups = timeline.groups.members.T
        self.groups = [np.unique(member_groups[np.searchsorted(numbers, devices)]) for devices in self.devices]
        self._of_rank: dict[PipelineRank, list[int]] = collections.defaultdict(list)
        for number, ranks in enumerate(self.ranks):
            for lane in ranks:
                self._of_rank[lane.rank].append(number)
        self._weights: dict[tuple[StageId, int, int], Float[np.ndarray, " i"]] = {}

    def of_stage(self, stage: StageId, microbatch: int) -> list[int]:
        """The lanes of a stage, for one microbatch or, if it is -1, of all pipeline replicas."""
        if stage not in self._graph.ranks_of:
            return []
        ranks = self._graph.ranks_of[stage] if microbatch < 0 else (self._graph.rank_of_microbatch(stage, microbatch),)
        return [lane for rank in ranks for lane in self._of_rank[rank]]

    def of_op(self, op: PipelineOp) -> list[int]:
        """All lanes on whose devices an op runs."""
        if op.kind == "global_norm":
            return list(range(len(self.ranks)))
        ends = (op.stage_id, op.target_id)
        return list(dict.fromkeys(lane for stage in ends for lane in self.of_stage(stage, op.microbatch)))

    def weights(self, span: Span, lane: int) -> Float[np.ndarray, " i"]:
        """How many of a lane's devices each replica of an op has; of a transfer that the lane sends, 1 for each."""
        op = span.op
        stage = op.target_id if op.kind in TRANSFERS else op.stage_id
        if op.kind == "global_norm" or lane not in self.of_stage(stage, op.microbatch):
            return np.ones(len(span.start))
        pipeline_replica = (
            self._graph.pipeline_replica_of_microbatch(stage[0], op.microbatch) if op.microbatch >= 0 else -1
        )
        if (stage, pipeline_replica, lane) not in self._weights:
            groups = self._timeline.groups
            table, is_first = (
                replicas_of_microbatch(self._graph.pipeline_replicas, stage[0], op.microbatch, tables[stage])
                for tables in (groups.groups_of, groups.is_first)
            )
            in_lane = np.isin(table, self.groups[lane]) & is_first
            self._weights[stage, pipeline_replica, lane] = (groups.sizes[table] * in_lane).sum(axis=1).astype(float)
        return self._weights[stage, pipeline_replica, lane]

    def chunk(self, op: PipelineOp, lane: int) -> int:
        """Which of its pipeline rank's stages an op belongs to, or -1."""
        ends = (op.stage_id, op.target_id)
        stages = (rank.stages for rank in self.ranks[lane])
        return next((number for rank_stages in stages for number, stage in enumerate(rank_stages) if stage in ends), -1)


def _short_ranges(devices: tuple[int, ...]) -> str:
    ranges = device_ranges(devices)
    return ranges if len(ranges) <= _LONGEST_RANGES else ranges[: _LONGEST_RANGES - 1] + "…"


def _drawn_op(span: Span, lane: int, places: _Places, idle_before: Mapping[IdleCause, float], half: Half) -> DrawnOp:
    weights = places.weights(span, lane)
    start, end, communication = (
        float(np.average(values, weights=weights)) for values in (span.start, span.end, span.communication)
    )
    return DrawnOp(
        op=span.op,
        chunk=places.chunk(span.op, lane),
        start=start,
        end=end,
        communication=communication,
        slowest=float(span.seconds[weights > 0].max()),
        idle_before=idle_before,
        half=half,
    )


class _LaneIdle:
    """Idle time before every span, the mean over the devices of a lane; a bundle's idle time is before its first op."""

    def __init__(self, timeline: Timeline, places: _Places, halves: Mapping[int, Half]) -> None:
        self._timeline, self._places, self._halves = timeline, places, halves
        self._seconds: dict[tuple[int, int], dict[IdleCause, float]] = collections.defaultdict(
            lambda: collections.defaultdict(float)
        )
        for period in timeline.idle_periods:
            if not period.within_span:
                self._add(period)

    def before(self, span: int, lane: int) -> Mapping[IdleCause, float]:
        """Idle seconds of a lane before a span, by cause; before span -1, the idle seconds at the end of the step."""
        return self._seconds.get((span, lane), {})

    def total(self, lane: int) -> float:
        """Idle seconds of a lane, idle seconds inside ops included."""
        groups = self._places.groups[lane]
        return sum(
            self._timeline.groups.mean_over(groups, group_seconds)
            for group_seconds in self._timeline.idle_by_group.values()
        )

    def _add(self, period: IdlePeriod) -> None:
        groups, lane_groups = self._timeline.groups, self._places.groups
        number = period.span
        affected = range(len(lane_groups)) if number < 0 else self._places.of_op(self._timeline.spans[number].op)
        if self._halves.get(number) == "lower":
            number -= 1
        for cause, seconds in period.seconds.items():
            if seconds.any():
                by_group = np.zeros(len(groups.sizes))
                np.add.at(by_group, period.groups, seconds)
                for lane in affected:
                    mean = groups.mean_over(lane_groups[lane], by_group)
                    if mean:
                        self._seconds[number, lane][cause] += mean
