"""What there is to draw of a timeline: each physical stage's ops, as means over instances, and the gaps between."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import PipelineOp
from sharding.simulation.idle_time import TRANSFERS
from sharding.simulation.spans import Span
from sharding.simulation.timeline import IdlePeriod, Lane, Timeline


@dataclasses.dataclass(frozen=True)
class DrawnOp:
    """An op on one physical stage, all times in seconds and means over its instances.

    Attributes:
        part: What ran.
        chunk: Which of the physical stage's virtual stages it belongs to, or -1.
        start, end: Since the step began.
        tensor: Of them, waiting for collectives of its ranks.
        longest: The op on its slowest instance.
        gap: Idle time of the stage's devices in front of it, by cause.
    """

    op: PipelineOp
    chunk: int
    start: float
    end: float
    communication: float
    slowest: float
    idle_before: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class DrawnLane:
    """A physical stage, its ops in order, and its idle seconds after the last of them, by cause."""

    lane: Lane
    ops: tuple[DrawnOp, ...]
    idle_after: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class DrawnHop:
    """A hop between physical stages; `source` and `target` number the lanes."""

    op: PipelineOp
    source: int
    target: int
    start: float
    end: float


def drawn_lanes(timeline: Timeline) -> tuple[DrawnLane, ...]:
    """All lanes. The norm stands in each; a hop that holds devices stands in those of both its ends."""
    lanes, gaps = timeline.lanes, _Gaps(timeline)
    ops: list[list[DrawnOp]] = [[] for _ in lanes]
    for number, span in enumerate(timeline.spans):
        if span.op.kind in TRANSFERS and not timeline.rendezvous:
            continue
        for lane in gaps.lanes_of(span.op):
            ops[lane].append(_drawn(span, lanes[lane], gaps.before(number, lane)))
    return tuple(
        DrawnLane(lane, tuple(sorted(ops[number], key=lambda op: op.start)), gaps.before(-1, number))
        for number, lane in enumerate(lanes)
    )


def drawn_hops(timeline: Timeline) -> Iterator[DrawnHop]:
    """All hops of activations and gradients."""
    lane_of = {node: number for number, lane in enumerate(timeline.lanes) for node in lane.stages}
    for span in timeline.spans:
        part = span.op
        if part.kind in ("hop", "hop_back"):
            ends = lane_of[part.stage_id], lane_of[part.target_id]
            yield DrawnHop(part, *ends, float(span.start.mean()), float(span.end.mean()))


def _drawn(span: Span, lane: Lane, gap: Mapping[str, float]) -> DrawnOp:
    chunk = next(
        (number for number, node in enumerate(lane.stages) if node in (span.op.stage_id, span.op.target_id)), -1
    )
    times = (
        float(span.start.mean()),
        float(span.end.mean()),
        float(span.communication.mean()),
        float(span.seconds.max()),
    )
    return DrawnOp(span.op, chunk, *times, gap)


class _Gaps:
    """Idle time in front of every span, the mean over the devices of a lane."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lane_of: dict[StageId, int] = {
            n: number for number, lane in enumerate(timeline.lanes) for n in lane.stages
        }
        self._found: dict[tuple[int, int], dict[str, float]] = collections.defaultdict(dict)
        for idle in timeline.idles:
            if not idle.within_span:
                self._add(idle)

    def lanes_of(self, part: PipelineOp) -> list[int]:
        """Numbers of the lanes on whose devices a part runs."""
        if part.kind == "norm":
            return list(range(len(self._timeline.lanes)))
        return list(
            dict.fromkeys(self._lane_of[node] for node in (part.stage_id, part.target_id) if node in self._lane_of)
        )

    def before(self, span: int, lane: int) -> Mapping[str, float]:
        return self._found.get((span, lane), {})

    def _add(self, idle: IdlePeriod) -> None:
        groups, lanes = self._timeline.groups, self._timeline.lanes
        touched = range(len(lanes)) if idle.span < 0 else self.lanes_of(self._timeline.spans[idle.span].op)
        for cause, seconds in idle.seconds.items():
            if seconds.any():
                whole = np.zeros(len(groups.sizes))
                np.add.at(whole, idle.groups, seconds)
                for lane in touched:
                    mean = groups.stage_mean(lanes[lane].stages[0], whole)
                    if mean:
                        self._found[idle.span, lane][cause] = mean
