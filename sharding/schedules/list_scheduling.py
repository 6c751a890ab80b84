"""List scheduling: devices that are free run the most urgent op that is ready; an op takes a slot or its seconds."""

import collections
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sharding.plans.stage_graph import PipelineRank, StageId
from sharding.schedules.in_flight import InFlightLimits, InFlightMicrobatches, check_limits
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, StageSeconds
from sharding.schedules.weights_and_gradients import WeightsAndGradients

Priority = Callable[[PipelineOp], tuple[Any, ...]]
"""Sort key of a forward or backward; the least is the most urgent. It grows with the microbatch in every stage."""

ONE_SLOT = StageSeconds(forward=1.0, backward=1.0)
"""Where no seconds are known, all forwards and backwards take as long as each other."""


def list_schedule(
    op_graph: OpGraph,
    max_in_flight: InFlightLimits,
    priority: Priority,
    fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]] | None = None,
    seconds: Mapping[StageId, StageSeconds] | None = None,
) -> Schedule:
    """Orders all ops of a pass by when they start.

    Whenever devices become free, the ready forwards and backwards are taken by priority; an op needs all its devices
    free. A hop takes no time and follows the ops that end with the one that produces its array, so that no op in
    between waits for it where hops occupy both ends. A rank that holds as many microbatches as it may starts no
    forward. Where limits and fixed orders leave nothing that may run, the oldest microbatch in flight runs its next op
    in spite of them: it depends on no other microbatch. Weights are gathered before the first input of any
    stage on their devices, and gradients reduced as soon as those devices compute no more (`WeightsAndGradients`).

    Args:
        op_graph: The ops and their dependencies.
        max_in_flight: How many microbatches each rank may hold at once; at least 1.
        priority: Which ops run first.
        fixed_orders: For some ranks, all their forwards and backwards in an order to keep, even if devices stay idle.
        seconds: How long the ops of every stage take; by default all take one slot.
    """
    check_limits(op_graph, max_in_flight)
    ready = _ReadyOps(op_graph, priority)
    device_bits = _device_bits(op_graph)
    running = _RunningOps(device_bits, seconds or dict.fromkeys(op_graph.stage_graph.stages, ONE_SLOT))
    limits = _Limits(op_graph, max_in_flight, fixed_orders or {})
    collectives, order = WeightsAndGradients(op_graph, device_bits), []
    while ready or running:
        started = [op for op in ready if limits.allow(op) and running.start(op)]
        if not started and not running:
            started = [op for op in ready if limits.is_oldest(op) and running.start(op)]
        for op in started:
            order += [*collectives.before(op), op]
            ready.remove(op)
            limits.record_start(op)
        for op in running.finish_next():
            hops = op_graph.forward_hops if op.kind == "forward" else op_graph.backward_hops
            for hop in hops(op.stage_id, op.microbatch):
                order += [*collectives.before(hop), hop]
            order += collectives.after(op)
            ready.add_dependents(op)
            limits.record_end(op)
    return Schedule(op_graph, (*order, *collectives.rest()))


def warm_up_order(op_graph: OpGraph, rank: PipelineRank, warm_up: int) -> list[PipelineOp]:
    """All forwards and backwards of a rank: `warm_up` forwards, then forward and backward alternating, then the rest.

    Forwards run in groups of pp microbatches: a group through the rank's first chunk, then through its second, and so
    on; backwards go through the chunks in reverse (Narayanan et al., arXiv 2104.04473, section 2.2).
    """
    size, count = op_graph.stage_graph.pp.get(rank[0], 1), op_graph.microbatches
    groups = [range(first, min(first + size, count)) for first in range(0, count, size)]
    stages = op_graph.stage_graph.stages_of[rank]
    forwards = [PipelineOp("forward", *stage, number) for group in groups for stage in stages for number in group]
    backwards = [
        PipelineOp("backward", *stage, number) for group in groups for stage in reversed(stages) for number in group
    ]
    pairs = itertools.zip_longest(forwards[warm_up:], backwards)
    ordered = (*forwards[:warm_up], *(op for pair in pairs for op in pair if op))
    return [op for op in ordered if op.kind == "forward" or op.stage_id in op_graph.backward_stages]


class _ReadyOps:
    """The forwards and backwards whose inputs are there: the first of each stage and kind, most urgent first."""

    def __init__(self, op_graph: OpGraph, priority: Priority) -> None:
        self._op_graph, self._priority = op_graph, priority
        graph = op_graph.stage_graph
        self._position = {stage: position for position, stage in enumerate(graph.stages)}
        self._missing: dict[PipelineOp, int] = {}  # inputs that have not come
        # Microbatches pass a stage in order, so they become ready in order.
        self._ready: dict[tuple[OpKind, StageId], collections.deque[PipelineOp]] = collections.defaultdict(
            collections.deque
        )
        self._heads: dict[tuple[OpKind, StageId], tuple[tuple[Any, ...], int, PipelineOp]] = {}
        for stage, number in itertools.product(graph.stages, range(op_graph.microbatches)):
            forward, backward = (PipelineOp(kind, *stage, number) for kind in ("forward", "backward"))
            self._missing[forward] = len(graph.sources[stage])
            if stage in op_graph.backward_stages:
                self._missing[backward] = 1 + len(graph.targets[stage])
            if not graph.sources[stage]:
                self._add(forward)

    def __len__(self) -> int:
        """Number of ops that are ready, the first of each stage and kind."""
        return len(self._heads)

    def __iter__(self) -> Iterator[PipelineOp]:
        return (op for _, _, op in sorted(self._heads.values()))

    def remove(self, op: PipelineOp) -> None:
        """Takes out an op that starts."""
        self._ready[op.kind, op.stage_id].popleft()
        self._update_head(op.kind, op.stage_id)

    def add_dependents(self, op: PipelineOp) -> None:
        """Records that an op has ended; forwards and backwards that waited for nothing else become ready."""
        graph, backward_stages = self._op_graph.stage_graph, self._op_graph.backward_stages
        waiting: list[PipelineOp] = []
        if op.kind == "forward":
            waiting += [PipelineOp("forward", *target, op.microbatch) for target in graph.targets[op.stage_id]]
        before = (op.stage_id,) if op.kind == "forward" else graph.sources[op.stage_id]
        waiting += [PipelineOp("backward", *stage, op.microbatch) for stage in before if stage in backward_stages]
        for dependent in waiting:
            self._missing[dependent] -= 1
            if not self._missing[dependent]:
                self._add(dependent)

    def _add(self, op: PipelineOp) -> None:
        self._ready[op.kind, op.stage_id].append(op)
        self._update_head(op.kind, op.stage_id)

    def _update_head(self, kind: OpKind, stage: StageId) -> None:
        ready = self._ready[kind, stage]
        if ready:
            self._heads[kind, stage] = (self._priority(ready[0]), self._position[stage], ready[0])
        else:
            del self._heads[kind, stage]


class _RunningOps:
    """The ops that run at a moment, and the devices that they occupy."""

    def __init__(self, device_bits: Mapping[StageId, int], seconds: Mapping[StageId, StageSeconds]) -> None:
        self._seconds, self._bits = seconds, device_bits
        self._now, self._busy = 0.0, 0
        self._ends: list[tuple[float, int, PipelineOp]] = []
        self._started = 0

    def __len__(self) -> int:
        """Number of ops that run."""
        return len(self._ends)

    def start(self, op: PipelineOp) -> bool:
        """Starts an op if its devices are free; whether it did."""
        bits = self._bits[op.stage_id]
        if self._busy & bits:
            return False
        self._busy |= bits
        self._started += 1
        heapq.heappush(self._ends, (self._now + self._seconds[op.stage_id].of(op.kind), self._started, op))
        return True

    def finish_next(self) -> list[PipelineOp]:
        """Goes on to the moment when the next op ends; the ops that end then, in the order in which they started."""
        self._now = self._ends[0][0]
        ended = []
        while self._ends and self._ends[0][0] <= self._now:
            ended.append(heapq.heappop(self._ends)[2])
            self._busy &= ~self._bits[ended[-1].stage_id]
        return ended


class _Limits:
    """Which ops the limits of microbatches in flight and the fixed orders allow."""

    def __init__(
        self,
        op_graph: OpGraph,
        max_in_flight: InFlightLimits,
        fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]],
    ) -> None:
        self._rank_of, self._max_in_flight = op_graph.stage_graph.rank_of, max_in_flight
        self._in_flight = InFlightMicrobatches(op_graph)
        self._remaining = {rank: collections.deque(ops) for rank, ops in fixed_orders.items()}

    def allow(self, op: PipelineOp) -> bool:
        """Whether an op may start."""
        rank = self._rank_of[op.stage_id]
        next_in_order = rank not in self._remaining or self._remaining[rank][0] == op
        return next_in_order and (op.kind == "backward" or self._in_flight[rank] < self._max_in_flight[rank])

    def is_oldest(self, op: PipelineOp) -> bool:
        """Whether an op is of the oldest microbatch in flight."""
        return self._in_flight.is_oldest(op.microbatch)

    def record_start(self, op: PipelineOp) -> None:
        """A forward holds its microbatch from its start."""
        rank = self._rank_of[op.stage_id]
        if rank in self._remaining:
            self._remaining[rank].remove(op)
        if op.kind == "forward":
            self._in_flight.record(op)

    def record_end(self, op: PipelineOp) -> None:
        """A backward holds its microbatch until its end."""
        if op.kind == "backward":
            self._in_flight.record(op)


def _device_bits(op_graph: OpGraph) -> dict[StageId, int]:
    """The devices of every stage as the bits of an integer, one bit for each class of devices in the same stages."""
    devices = op_graph.stage_graph.devices
    classes = op_graph.stage_graph.device_classes
    return {
        stage: sum(1 << bit for bit, members in enumerate(classes) if members[0] in stage_devices)
        for stage, stage_devices in devices.items()
    }
