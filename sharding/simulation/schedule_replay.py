"""The replay of a schedule: when every op can start on every replica, given when the ops before it ended."""

import collections
import functools
import itertools
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, Int

from sharding.plans.device_groups import group_devices, latest_of_sources, replicas_of_microbatch
from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, ScheduleError
from sharding.simulation.bundles import COLLECTIVES, BundleClock, BundledOp, joined_parts
from sharding.simulation.spans import Span

Seconds = Float[np.ndarray, " i"]
"""One entry for each replica of a stage:

of the pipeline replica that takes the op's microbatch, or of all in an op once a step.
"""

OpClock = Callable[[PipelineOp, Seconds], Span]
"""Called with an op and the moments at which each replica could start it; says when each did, and when it ended."""


def replay_schedule(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    clock: OpClock,
    bundle_clock: BundleClock,
    rendezvous: bool,
) -> tuple[Span, ...]:
    """The span of every op of a schedule, in its order.

    An op can start once its devices have run the ops before it in the schedule and its inputs have arrived. The
    replicas of a stage run independently; those of a hop's target wait for the source replicas whose rows they take.
    `gather` and `reduce` join the replicas of all pipeline replicas of a stage, a share joins those of both its stages,
    `global_norm` all devices. A bundle can start once both its ops could, on all replicas of either that share devices;
    what depends on one of them waits for the end of both.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        schedule: A schedule that `check_schedule` accepts.
        clock: How long ops take.
        bundle_clock: How long bundles take.
        rendezvous: Whether a hop occupies the devices of both its ends; if not, it occupies none.
    """
    state = _ScheduleRun(devices, schedule.op_graph, clock, rendezvous)
    spans: list[Span] = []
    for op, following in itertools.zip_longest(schedule.ops, schedule.ops[1:]):
        if following in schedule.bundled:
            spans += state.bundle(op, following, bundle_clock)
        elif op not in schedule.bundled:
            spans.append(_RUN[op.kind](state, op))
    return tuple(spans)


class _ScheduleRun:
    """When each group of devices is free, and which inputs have arrived where."""

    def __init__(
        self, devices: Mapping[StageId, Int[np.ndarray, "_ _"]], op_graph: OpGraph, clock: OpClock, rendezvous: bool
    ) -> None:
        self._graph, self._awaited = op_graph.stage_graph, op_graph.awaited
        self._clock = clock
        self._rendezvous = rendezvous
        groups = group_devices(devices)
        self._groups_of = groups.groups_of
        self._parts: dict[tuple, tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]] = {}
        self._free = np.zeros(len(groups.sizes))
        self._ends: dict[tuple[OpKind, StageId, int], Seconds] = {}
        # For a forward or backward to come: how many inputs have arrived, and when the last of them did.
        self._arrived: dict[tuple[OpKind, StageId, int], tuple[int, Seconds]] = {}
        self._borrowed_weights: dict[StageId, float] = collections.defaultdict(float)
        self._returned_gradients = 0.0

    def _groups(self, stage: StageId, microbatch: int) -> Int[np.ndarray, "i g"]:
        """The groups of devices that work on a microbatch in a stage."""
        return replicas_of_microbatch(self._graph.pipeline_replicas, stage[0], microbatch, self._groups_of[stage])

    def compute(self, op: PipelineOp) -> Span:
        """Runs an op of `COMPUTE_KINDS`, a gather or a reduction."""
        return self._record(self._clock(op, self._ready(op)))

    def bundle(self, first: PipelineOp, second: PipelineOp, clock: BundleClock) -> tuple[Span, Span]:
        """Runs two ops in one program."""
        ready = [self._ready(op) for op in (first, second)]
        parts = self._joined_parts(first, second)
        start = np.zeros(1 + max(int(part.max()) for part in parts))
        for of_op, part in zip(ready, parts, strict=True):
            np.maximum.at(start, part, of_op)
        spans = clock((BundledOp(first, parts[0]), BundledOp(second, parts[1])), start)
        return self._record(spans[0]), self._record(spans[1])

    def _joined_parts(
        self, first: PipelineOp, second: PipelineOp
    ) -> tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]:
        """The parts of a bundle; a gather or a reduction joins all of its stage."""
        tables = [self._groups(op.stage_id, op.microbatch) for op in (first, second)]
        if first.kind in COLLECTIVES:
            return np.zeros(len(tables[0]), int), np.zeros(len(tables[1]), int)
        places = [
            (op.stage_id, self._graph.pipeline_replica_of_microbatch(op.unit, op.microbatch)) for op in (first, second)
        ]
        key = (*places[0], *places[1])
        if key not in self._parts:
            self._parts[key] = joined_parts(*tables)
        return self._parts[key]

    def _ready(self, op: PipelineOp) -> Seconds:
        """When an op could start: its devices are free, and its inputs have arrived."""
        if op.kind in COLLECTIVES:
            groups = self._groups_of[op.stage_id]
            return np.full(len(groups), float(self._free[groups].max()))
        stage, number, is_forward = op.stage_id, op.microbatch, op.kind == "forward"
        sent = {"forward": self._graph.sources, "backward": self._graph.targets}
        inputs = sent[op.kind][stage] if op.kind in sent else ()  # the devices have run what a wgrad needs
        groups = self._groups(stage, number)
        start = self._free[groups].max(axis=1)
        if inputs:
            count, ready = self._arrived.pop((op.kind, stage, number), (0, start))
            if count < len(inputs):
                raise ScheduleError(
                    f"{op} is scheduled before what it needs; only {count} of {len(inputs)} inputs came"
                )
            start = np.maximum(start, ready)
        if is_forward and stage in self._borrowed_weights:
            start = np.maximum(start, self._borrowed_weights[stage])
        return start

    def _record(self, span: Span) -> Span:
        """Occupies the devices of an op until its end."""
        op = span.op
        self._free[self._groups(op.stage_id, op.microbatch)] = span.end[:, None]
        self._ends[op.kind, op.stage_id, op.microbatch] = span.end
        return span

    def hop(self, op: PipelineOp) -> Span:
        """Sends an activation, or a gradient back."""
        kind: OpKind = "forward" if op.kind == "hop" else "backward"
        ends = [self._ends.get((kind, op.stage_id, number)) for number in self._awaited(op.stage_id, op.microbatch)]
        ended = [end for end in ends if end is not None]
        if len(ended) < len(ends):
            raise ScheduleError(f"{op} is scheduled before the {kind} it follows")
        produced = functools.reduce(np.maximum, ended)
        exchanged = self._graph.is_exchange(op.stage_id, op.target_id)
        start = latest_of_sources(produced, len(self._groups(op.target_id, op.microbatch)), exchanged)
        if self._rendezvous:
            start = np.maximum(start, self._both_ends_free(op))
        span = self._clock(op, start)
        if self._rendezvous:
            self._occupy_both_ends(op, span.end)
        key = (kind, op.target_id, op.microbatch)
        count, ready = self._arrived.get(key, (0, span.end))
        self._arrived[key] = (count + 1, np.maximum(ready, span.end))
        return span

    def _both_ends_free(self, op: PipelineOp) -> Seconds:
        """When both ends of a hop are free, for every replica of its target."""
        source = self._free[self._groups(op.stage_id, op.microbatch)].max(axis=1)
        target = self._free[self._groups(op.target_id, op.microbatch)].max(axis=1)
        exchanged = self._graph.is_exchange(op.stage_id, op.target_id)
        return np.maximum(target, latest_of_sources(source, len(target), exchanged))

    def _occupy_both_ends(self, op: PipelineOp, end: Seconds) -> None:
        source, target = self._groups(op.stage_id, op.microbatch), self._groups(op.target_id, op.microbatch)
        np.maximum.at(self._free, target, end[:, None])
        exchanged = self._graph.is_exchange(op.stage_id, op.target_id)
        np.maximum.at(self._free, source, latest_of_sources(end, len(source), exchanged)[:, None])

    def share(self, op: PipelineOp) -> Span:
        """Sends a tied weight or its gradient from all replicas of a stage to all of another."""
        ready_after: OpKind = "gather" if op.kind == "send_tied_weight" else "reduce"
        ends = (op.stage_id, op.target_id)
        moment = max(float(self._ends[ready_after, stage, -1].max()) for stage in ends)
        if self._rendezvous:
            moment = max(float(self._free[self._groups_of[stage]].max()) for stage in ends)
        span = self._clock(op, np.full(len(self._groups_of[op.target_id]), moment))
        moment = float(span.end.max())
        if self._rendezvous:
            self._free[self._groups_of[op.stage_id]] = self._free[self._groups_of[op.target_id]] = moment
        if op.kind == "send_tied_weight":
            self._borrowed_weights[op.target_id] = max(self._borrowed_weights[op.target_id], moment)
        else:
            self._returned_gradients = max(self._returned_gradients, moment)
        return span

    def update(self, op: PipelineOp) -> Span:
        """Runs the optimizer of a stage."""
        groups = self._groups_of[op.stage_id]
        span = self._clock(op, self._free[groups].max(axis=1))
        self._free[groups] = span.end[:, None]
        return span

    def norm(self, op: PipelineOp) -> Span:
        """Runs the norm of the gradients, which joins all devices."""
        span = self._clock(op, np.full(1, max(float(self._free.max()), self._returned_gradients)))
        self._free[:] = span.end
        return span


_RUN: dict[OpKind, Callable[[_ScheduleRun, PipelineOp], Span]] = {
    "forward": _ScheduleRun.compute,
    "backward": _ScheduleRun.compute,
    "wgrad": _ScheduleRun.compute,
    "hop": _ScheduleRun.hop,
    "gradient_hop": _ScheduleRun.hop,
    "send_tied_weight": _ScheduleRun.share,
    "send_tied_gradient": _ScheduleRun.share,
    "gather": _ScheduleRun.compute,
    "reduce": _ScheduleRun.compute,
    "update": _ScheduleRun.update,
    "global_norm": _ScheduleRun.norm,
}
