"""List scheduling: devices that are free run the most urgent op that is ready; an op takes a slot or its seconds."""

import collections
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sharding.html.numbers import count_of
from sharding.plans.resolved.stage_graph import PipelineRank, StageGraph, StageId
from sharding.schedules.in_flight import InFlightLimits, InFlightMicrobatches, check_limits
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, ScheduleError, StageSeconds
from sharding.schedules.weights_and_gradients import WeightsAndGradients

Priority = Callable[[PipelineOp], tuple[Any, ...]]
"""Sort key of an op of `COMPUTE_KINDS`; the least is the most urgent. It grows with the microbatch in every stage."""

ONE_SLOT = StageSeconds(forward=1.0, backward=1.0, wgrad=1.0)
"""Where no seconds are known, all ops of `COMPUTE_KINDS` take as long as each other."""


def list_schedule(
    op_graph: OpGraph,
    max_in_flight: InFlightLimits,
    priority: Priority,
    fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]] | None = None,
    seconds: Mapping[StageId, StageSeconds] | None = None,
) -> Schedule:
    """Orders all ops of a pass by when they start.

    Whenever devices become free, the ready ops of `COMPUTE_KINDS` are taken by priority; an op needs all its devices
    free. A hop takes no time and follows the ops that end with the one that produces its array, so that no op in
    between waits for it where hops occupy both ends. A rank that holds as many microbatches as it may starts no
    forward. Where limits and fixed orders leave nothing that may run, the oldest microbatch in flight runs its next op
    in spite of them: it depends on no other microbatch. Only stages whose microbatches one program runs need all of
    them, and have room for them; such a stage takes them in order, and what it makes is there after the last. Weights
    are gathered before the first input of any stage on their devices, and gradients reduced as soon as their devices
    compute no more (`WeightsAndGradients`).

    Args:
        op_graph: The ops and their dependencies.
        max_in_flight: How many microbatches each rank may hold at once; at least 1.
        priority: Which ops run first.
        fixed_orders: For some ranks, all their forwards and backwards in an order to keep, even if devices stay idle;
            wgrads run between them.
        seconds: How long the ops of every stage take; by default all take one slot.

    Raises:
        ScheduleError: A stage whose microbatches one program runs, or one that feeds it, may not hold all of them.
    """
    check_limits(op_graph, max_in_flight)
    ready = _ReadyOps(op_graph, priority)
    device_bits = rank_device_bits(op_graph.stage_graph)
    running = _RunningOps(
        op_graph.stage_graph, device_bits, seconds or dict.fromkeys(op_graph.stage_graph.stages, ONE_SLOT)
    )
    limits = _Limits(op_graph, max_in_flight, {**(fixed_orders or {}), **_orders_of_compiled(op_graph)})
    collectives, order = WeightsAndGradients(op_graph, device_bits), []
    while ready or running:
        started = [op for op in ready if limits.allow(op) and running.start(op)]
        if not started and not running:
            started = [op for op in ready if limits.is_oldest(op) and running.start(op)]
            if not started:
                raise ScheduleError(limits.why_nothing_starts(next(iter(ready))))
        for op in started:
            order += [*collectives.before(op), op]
            ready.remove(op)
            limits.record_start(op)
        for op in running.finish_next():
            for hop in op_graph.hops_after(op):
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
    graph, size = op_graph.stage_graph, op_graph.stage_graph.pp.get(rank[0], 1)
    stages = graph.stages_of[rank]
    numbers = [number for number in range(op_graph.microbatches) if graph.rank_of_microbatch(stages[0], number) == rank]
    groups = [numbers[first : first + size] for first in range(0, len(numbers), size)]
    forwards = [PipelineOp("forward", *stage, number) for group in groups for stage in stages for number in group]
    backwards = [
        PipelineOp("backward", *stage, number) for group in groups for stage in reversed(stages) for number in group
    ]
    pairs = itertools.zip_longest(forwards[warm_up:], backwards)
    ordered = (*forwards[:warm_up], *(op for pair in pairs for op in pair if op))
    return [op for op in ordered if op.kind == "forward" or op.stage_id in op_graph.backward_stages]


def _orders_of_compiled(op_graph: OpGraph) -> dict[PipelineRank, list[PipelineOp]]:
    """All forwards, then all backwards, of every stage that one program runs."""
    ranks = (op_graph.stage_graph.ranks_of[stage][0] for stage in op_graph.stage_graph.compiled)
    return {rank: warm_up_order(op_graph, rank, op_graph.microbatches) for rank in ranks}


_Urgency = tuple[tuple[Any, ...], int, PipelineOp]
"""The sort key of ready ops: the priority, then the position of the stage in the graph."""


class _ReadyOps:
    """The ops of `COMPUTE_KINDS` whose inputs are there: the first of each rank's stage and kind, most urgent first."""

    def __init__(self, op_graph: OpGraph, priority: Priority) -> None:
        self._op_graph, self._priority = op_graph, priority
        graph = op_graph.stage_graph
        self._position = {stage: position for position, stage in enumerate(graph.stages)}
        self._missing: dict[PipelineOp, int] = {}  # inputs that have not come
        self._ready: dict[tuple[OpKind, StageId, int], list[_Urgency]] = collections.defaultdict(list)
        for stage in graph.stages:
            inputs, gradients = (
                self._awaited_of(stages) for stages in (graph.sources[stage], (stage, *graph.targets[stage]))
            )
            for number in range(op_graph.microbatches):
                forward, backward = (PipelineOp(kind, *stage, number) for kind in ("forward", "backward"))
                self._missing[forward] = inputs
                if stage in op_graph.split_stages:
                    self._missing[PipelineOp("wgrad", *stage, number)] = 1
                if stage in op_graph.backward_stages:
                    self._missing[backward] = gradients
                if not graph.sources[stage]:
                    self._add(forward)

    def _awaited_of(self, stages: Sequence[StageId]) -> int:
        """How many passes of some stages must have run, for each microbatch."""
        return sum(len(self._op_graph.awaited(stage, 0)) for stage in stages)

    def __len__(self) -> int:
        """Number of ops that are ready, the first of each rank's stage and kind."""
        return len(self._ready)

    def __iter__(self) -> Iterator[PipelineOp]:
        return (op for _, _, op in sorted(ready[0] for ready in self._ready.values()))

    def remove(self, op: PipelineOp) -> None:
        """Takes out an op that starts, the first of its stage and kind."""
        key = self._key(op)
        heapq.heappop(self._ready[key])
        if not self._ready[key]:
            del self._ready[key]

    def _key(self, op: PipelineOp) -> tuple[OpKind, StageId, int]:
        return op.kind, op.stage_id, self._op_graph.stage_graph.pipeline_replica_of_microbatch(op.unit, op.microbatch)

    def add_dependents(self, op: PipelineOp) -> None:
        """Records that an op has ended; ops of `COMPUTE_KINDS` that waited for nothing else become ready."""
        graph, backward_stages = self._op_graph.stage_graph, self._op_graph.backward_stages
        if op.kind == "wgrad":
            return
        waiting: list[PipelineOp] = []
        if op.kind == "backward" and op.stage_id in self._op_graph.split_stages:
            waiting.append(op._replace(kind="wgrad"))
        numbers = self._op_graph.awaited(op.stage_id, op.microbatch)
        if op.kind == "forward":
            targets = graph.targets[op.stage_id]
            waiting += [PipelineOp("forward", *target, number) for target in targets for number in numbers]
        before = (op.stage_id,) if op.kind == "forward" else graph.sources[op.stage_id]
        waiting += [
            PipelineOp("backward", *stage, number) for stage in before if stage in backward_stages for number in numbers
        ]
        for dependent in waiting:
            self._missing[dependent] -= 1
            if not self._missing[dependent]:
                self._add(dependent)

    def _add(self, op: PipelineOp) -> None:
        heapq.heappush(self._ready[self._key(op)], (self._priority(op), self._position[op.stage_id], op))


class _RunningOps:
    """The ops that run at a moment, and the devices that they occupy."""

    def __init__(
        self, graph: StageGraph, device_bits: Mapping[PipelineRank, int], seconds: Mapping[StageId, StageSeconds]
    ) -> None:
        self._graph, self._seconds, self._bits = graph, seconds, device_bits
        self._now, self._busy = 0.0, 0
        self._ends: list[tuple[float, int, PipelineOp]] = []
        self._started = 0

    def __len__(self) -> int:
        """Number of ops that run."""
        return len(self._ends)

    def start(self, op: PipelineOp) -> bool:
        """Starts an op if its devices are free; whether it did."""
        bits = self._devices(op)
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
            self._busy &= ~self._devices(ended[-1])
        return ended

    def _devices(self, op: PipelineOp) -> int:
        return self._bits[self._graph.rank_of_microbatch(op.stage_id, op.microbatch)]


class _Limits:
    """Which ops the limits of microbatches in flight and the fixed orders allow."""

    def __init__(
        self,
        op_graph: OpGraph,
        max_in_flight: InFlightLimits,
        fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]],
    ) -> None:
        self._graph, self._max_in_flight = op_graph.stage_graph, max_in_flight
        self._in_flight = InFlightMicrobatches(op_graph)
        self._remaining = {rank: collections.deque(ops) for rank, ops in fixed_orders.items()}

    def allow(self, op: PipelineOp) -> bool:
        """Whether an op may start."""
        if op.kind == "wgrad":
            return True
        rank = self._graph.rank_of_microbatch(op.stage_id, op.microbatch)
        next_in_order = rank not in self._remaining or self._remaining[rank][0] == op
        return next_in_order and (op.kind == "backward" or self._in_flight[rank] < self._max_in_flight[rank])

    def is_oldest(self, op: PipelineOp) -> bool:
        """Whether an op is of the oldest microbatch in flight."""
        return self._in_flight.is_oldest(op.microbatch)

    def why_nothing_starts(self, op: PipelineOp) -> str:
        """Says why a ready op cannot start though nothing runs: a stage of one program waits for more microbatches."""
        rank = self._graph.rank_of_microbatch(op.stage_id, op.microbatch)
        held = count_of(self._max_in_flight[rank], "microbatch")
        return (
            f"{op} cannot start, and nothing runs: its stage may hold {held}; allow "
            'all that a step has to units with the executor "compiled" and to those that feed them'
        )

    def record_start(self, op: PipelineOp) -> None:
        """Records the start of an op: a forward holds its microbatch from then on."""
        rank = self._graph.rank_of_microbatch(op.stage_id, op.microbatch)
        if rank in self._remaining and op.kind != "wgrad":
            self._remaining[rank].remove(op)
        if op.kind == "forward":
            self._in_flight.record(op)

    def record_end(self, op: PipelineOp) -> None:
        """Records the end of an op: an op that releases a microbatch holds it until then."""
        if op.kind != "forward":
            self._in_flight.record(op)


def rank_device_bits(graph: StageGraph) -> dict[PipelineRank, int]:
    """The devices of every pipeline rank as the bits of an integer, one for each class of devices in the same ranks."""
    return {
        rank: sum(1 << bit for bit, members in enumerate(graph.device_classes) if members[0] in devices)
        for rank, devices in graph.rank_devices.items()
    }
