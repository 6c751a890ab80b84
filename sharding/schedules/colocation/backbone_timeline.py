"""When the backbone's ops would run by themselves, and the idle time that this leaves for its encoders.

Of Optimus (arXiv 2408.03505), section 4.3: the backbone needs an encoder's output of microbatch i at the forward
dependency point F_i, and has its gradient at the backward dependency point B_i.
"""

import dataclasses
import functools
from math import inf

from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.bubbles.bundling import BundleHosts
from sharding.schedules.bubbles.filling import Bubbles
from sharding.schedules.bubbles.idle_intervals import IdleIntervals, Interval
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.interleaved_1f1b import interleaved_events
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.ops import OpGraph, PipelineOp
from sharding.schedules.pass_seconds import OpTimes, device_lanes, last_end, pass_times


@dataclasses.dataclass(frozen=True)
class BackboneTimeline:
    """Times of all ops but the encoders', from the start of the first.

    Attributes:
        op_graph: The step, with the encoders.
        unit: The backbone.
        lanes: For every pipeline rank, the numbers of its classes of devices.
        times: Start and end of every op.
    """

    op_graph: OpGraph
    unit: str
    lanes: dict[PipelineRank, tuple[int, ...]]
    times: OpTimes

    @property
    def end(self) -> float:
        """When the last op ends."""
        return last_end(self.times)

    def lanes_of(self, op: PipelineOp) -> tuple[int, ...]:
        """The classes of devices that run an op."""
        return self.lanes[self.op_graph.stage_graph.rank_of_microbatch(op.stage_id, op.microbatch)]

    def busy(self) -> list[list[Interval]]:
        """For every class of devices, when its ops run, ascending."""
        busy_intervals: list[list[Interval]] = [[] for _ in self.op_graph.stage_graph.device_classes]
        for op, interval in self.times.items():
            if interval[1] > interval[0]:
                for lane in self.lanes_of(op):
                    busy_intervals[lane].append(interval)
        return [sorted(intervals) for intervals in busy_intervals]

    def bubbles(self) -> Bubbles:
        """The bubbles that encoders fill; ops of the backbone with exposed collectives are hosts of slices."""
        seconds = self.op_graph.seconds
        hosts: dict[tuple[int, ...], list[tuple[Interval, PipelineOp]]] = {}
        for op, interval in self.times.items():
            if op.unit == self.unit and seconds[op.stage_id].communication_of(op.kind) > 0:
                hosts.setdefault(self.lanes_of(op), []).append((interval, op))
        return Bubbles(
            busy=self.busy(), end=self.end, microbatches=self.op_graph.microbatches, hosts=BundleHosts(hosts)
        )

    def needed_at(self, stage: StageId, microbatch: int) -> float:
        """F_i of a stage: the first start among the forwards here that take its output; infinity if none does."""
        targets = self.op_graph.stage_graph.targets[stage]
        ops = (PipelineOp("forward", *target, microbatch) for target in targets)
        return min((self.times[op][0] for op in ops if op in self.times), default=inf)

    def gradient_at(self, stage: StageId, microbatch: int) -> float:
        """B_i of a stage: the last end among the backwards here that it waits for; minus infinity if there is none."""
        targets = self.op_graph.stage_graph.targets[stage]
        ops = (PipelineOp("backward", *target, microbatch) for target in targets)
        return max((self.times[op][1] for op in ops if op in self.times), default=-inf)


def backbone_timeline(op_graph: OpGraph, unit: str, rest: OpGraph, limits: InFlightLimits) -> BackboneTimeline:
    """The ops of a step without its encoders, in the order of interleaved 1F1B and as early as that allows.

    Args:
        op_graph: The step.
        unit: The backbone.
        rest: The step without its encoders.
        limits: How many microbatches the ranks of `rest` may hold.
    """
    times = _interleaved_times(_EqualStep(rest, {rank: limits[rank] for rank in rest.stage_graph.stages_of}))
    return BackboneTimeline(op_graph, unit, device_lanes(op_graph), times)


class _EqualStep:
    """A key of steps; planners vary the encoders beside the same backbone."""

    def __init__(self, op_graph: OpGraph, limits: InFlightLimits) -> None:
        self.op_graph, self.limits = op_graph, limits

    def __hash__(self) -> int:
        return hash((self.op_graph.microbatches, *self.op_graph.seconds.items(), *self.limits.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EqualStep) and (self.op_graph, self.limits) == (other.op_graph, other.limits)


@functools.lru_cache(maxsize=4)
def _interleaved_times(key: _EqualStep) -> OpTimes:
    passes = NumberedPasses(key.op_graph)
    return pass_times(key.op_graph, passes.started(interleaved_events(passes, key.limits)))


def with_late_warm_up(timeline: BackboneTimeline) -> BackboneTimeline:
    """Returns the timeline with the forwards of the warm-up as late as possible while nothing else moves (figure 12).

    A forward moves into idle time of its devices, before the ops that need it. Devices that reach their first backward
    with time to spare then have that time earlier, where encoders' forwards use it, and hold fewer microbatches. Only
    the time until the first gradient for an encoder changes: later, backwards may need it.
    """
    graph, times = timeline.op_graph.stage_graph, dict(timeline.times)
    until = _first_gradient(timeline)
    idle = IdleIntervals(timeline.busy())
    forwards = [op for op in times if op.kind == "forward" and op.unit == timeline.unit and times[op][0] < until]
    position = {stage: number for number, stage in enumerate(graph.stages)}
    for op in sorted(forwards, key=lambda op: (times[op][0], position[op.stage_id], op.microbatch), reverse=True):
        start, end = times[op]
        if start == end:  # it takes no idle time that others could use, and would fit anywhere
            continue
        followers = [PipelineOp("forward", *target, op.microbatch) for target in graph.targets[op.stage_id]]
        followers.append(PipelineOp("backward", *op.stage_id, op.microbatch))
        due = min([max(until, end), *(times[follower][0] for follower in followers if follower in times)])
        lanes = timeline.lanes_of(op)
        idle.release(lanes, (start, end))
        times[op] = idle.take_latest(lanes, end - start, due)
    return dataclasses.replace(timeline, times=times)


def _first_gradient(timeline: BackboneTimeline) -> float:
    """When the first backward of the backbone's first stage ends; minus infinity if it runs none."""
    first = next(stage for stage in timeline.op_graph.stage_graph.stages if stage[0] == timeline.unit)
    ends = [end for op, (_, end) in timeline.times.items() if op.kind == "backward" and op.stage_id == first]
    return min(ends, default=-inf)
