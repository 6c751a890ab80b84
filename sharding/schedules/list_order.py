"""The order in which devices that are free take the most urgent of the ops that are ready."""

import collections
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sharding.html.numbers import count_of
from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.in_flight import InFlightLimits, InFlightMicrobatches, check_limits
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.ops import PipelineOp, ScheduleError, StageSeconds

Priority = Callable[[PipelineOp], tuple[Any, ...]]
"""Sort key of an op of `COMPUTE_KINDS`; the least is the most urgent. It grows with the microbatch in every stage."""


class ListOrder:
    """Makes one order; takes the arguments of `list_events`, with the orders of compiled stages among the fixed ones.

    Whenever ops end, only queues are looked at of which an op may start: one of their devices has become free, an op
    has joined them, or their rank has come to hold less.
    """

    def __init__(
        self,
        passes: NumberedPasses,
        max_in_flight: InFlightLimits,
        priority: Priority,
        fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]],
        seconds: Mapping[StageId, StageSeconds],
    ) -> None:
        check_limits(passes.op_graph, max_in_flight)
        self._passes = passes
        self._limits = _Limits(passes, max_in_flight, fixed_orders)
        self._lengths = [seconds[op.stage_id].of(op.kind) for op in passes.ops]
        keys = [(priority(op), passes.stages[number], op) for number, op in enumerate(passes.ops)]
        self._by_urgency = sorted(range(len(keys)), key=keys.__getitem__)
        self._urgency = [0] * len(keys)
        for position, number in enumerate(self._by_urgency):
            self._urgency[number] = position
        self._ready: list[list[int]] = [[] for _ in passes.queue_ranks]  # a heap of urgencies for each queue
        self._missing = list(passes.awaited_counts)
        self._changed: set[int] = set()  # queues of which an op may start
        self._queues_of_rank: list[list[int]] = [[] for _ in passes.rank_ids]
        for queue, rank in enumerate(passes.queue_ranks):
            self._queues_of_rank[rank].append(queue)
        self._queues_beside = self._find_queues_beside()
        self._now, self._busy = 0.0, 0
        self._ends: list[tuple[float, int, int]] = []  # when an op ends, how many had started before it, and the op
        self._events: list[int] = []

    def _find_queues_beside(self) -> list[tuple[int, ...]]:
        """By pipeline rank, the queues whose ops need some of its devices."""
        bits, queues = self._passes.rank_bits, self._queues_of_rank
        beside = [[other for other, other_bits in enumerate(bits) if rank_bits & other_bits] for rank_bits in bits]
        return [tuple(queue for other in others for queue in queues[other]) for others in beside]

    def events(self) -> list[int]:
        """Returns the starts and ends of all ops."""
        for number, missing in enumerate(self._missing):
            if not missing:
                self._add(number)
        waiting = len(self._missing)
        while waiting or self._ends:
            started = self._start()
            if not started and not self._ends:
                started = self._start_oldest()
            waiting -= started
            self._finish_next()
        return self._events

    def _add(self, number: int) -> None:
        queue = self._passes.queues[number]
        heapq.heappush(self._ready[queue], self._urgency[number])
        self._changed.add(queue)

    def _start(self) -> int:
        """Starts what may start, the most urgent first; the number of ops that have started."""
        ready, ranks, bits = self._ready, self._passes.ranks, self._passes.rank_bits
        heads = [ready[queue][0] for queue in self._changed if ready[queue]]
        heads.sort()
        self._changed.clear()
        started = []
        for urgency in heads:
            number = self._by_urgency[urgency]
            needed = bits[ranks[number]]
            if not self._busy & needed and self._limits.allow(number):
                self._busy |= needed
                started.append(number)
        self._record_starts(started)
        return len(started)

    def _start_oldest(self) -> int:
        """Starts the ops of the oldest microbatch in flight, in spite of limits and fixed orders."""
        heads, started = sorted(queue[0] for queue in self._ready if queue), []
        for urgency in heads:
            number = self._by_urgency[urgency]
            needed = self._passes.rank_bits[self._passes.ranks[number]]
            if self._limits.is_oldest(number) and not self._busy & needed:
                self._busy |= needed
                started.append(number)
        if not started:
            raise ScheduleError(self._limits.why_nothing_starts(self._by_urgency[heads[0]]))
        self._record_starts(started)
        return len(started)

    def _record_starts(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            heapq.heappop(self._ready[self._passes.queues[number]])
            heapq.heappush(self._ends, (self._now + self._lengths[number], len(self._events), number))
            self._events.append(number)
            for rank in self._limits.record_start(number):
                self._changed.update(self._queues_of_rank[rank])

    def _finish_next(self) -> None:
        """Goes on to the moment when the next op ends, and ends the ops that end then."""
        ends, passes = self._ends, self._passes
        self._now, ended = ends[0][0], []
        while ends and ends[0][0] <= self._now:
            ended.append(heapq.heappop(ends)[2])
        for number in ended:
            rank = passes.ranks[number]
            self._busy &= ~passes.rank_bits[rank]
            self._changed.update(self._queues_beside[rank])
            self._events.append(~number)
            for dependent in passes.dependents[number]:
                self._missing[dependent] -= 1
                if not self._missing[dependent]:
                    self._add(dependent)
            self._limits.record_end(number)


class _Limits:
    """Which ops the limits of microbatches in flight and the fixed orders allow."""

    def __init__(
        self,
        passes: NumberedPasses,
        max_in_flight: InFlightLimits,
        fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]],
    ) -> None:
        self._passes, self._max_in_flight = passes, max_in_flight
        self._in_flight = InFlightMicrobatches(passes.op_graph)
        self._kinds = [op.kind for op in passes.ops]
        self._remaining = [
            collections.deque(passes.numbers_of(fixed_orders[rank])) if rank in fixed_orders else None
            for rank in passes.rank_ids
        ]
        graph, has_backward = passes.op_graph.stage_graph, passes.op_graph.backward_stages
        self._held_by_sources = [
            [source for source in graph.sources[stage] if source not in has_backward] for stage in graph.stages
        ]
        self._rank_numbers = {rank: number for number, rank in enumerate(passes.rank_ids)}

    def allow(self, number: int) -> bool:
        """Whether an op may start."""
        kind = self._kinds[number]
        if kind == "wgrad":
            return True
        rank = self._passes.ranks[number]
        remaining = self._remaining[rank]
        if remaining is not None and remaining[0] != number:
            return False
        rank_id = self._passes.rank_ids[rank]
        return kind == "backward" or self._in_flight[rank_id] < self._max_in_flight[rank_id]

    def is_oldest(self, number: int) -> bool:
        """Whether an op is of the oldest microbatch in flight."""
        return self._in_flight.is_oldest(self._passes.ops[number].microbatch)

    def why_nothing_starts(self, number: int) -> str:
        """Says why a ready op cannot start though nothing runs: a stage of one program waits for more microbatches."""
        rank = self._passes.rank_ids[self._passes.ranks[number]]
        held = count_of(self._max_in_flight[rank], "microbatch")
        return (
            f"{self._passes.ops[number]} cannot start, and nothing runs: its stage may hold {held}; allow "
            'all that a step has to units with the executor "compiled" and to those that feed them'
        )

    def record_start(self, number: int) -> list[int]:
        """Records the start of an op: a forward holds its microbatch from then on.

        Returns:
            The ranks that may hold less from then on, as what they hold for the op has been taken.
        """
        kind, remaining = self._kinds[number], self._remaining[self._passes.ranks[number]]
        if remaining is not None and kind != "wgrad":
            remaining.remove(number)
        if kind != "forward":
            return []
        op, graph = self._passes.ops[number], self._passes.op_graph.stage_graph
        self._in_flight.record(op)
        sources = self._held_by_sources[self._passes.stages[number]]
        return [self._rank_numbers[graph.rank_of_microbatch(source, op.microbatch)] for source in sources]

    def record_end(self, number: int) -> None:
        """Records the end of an op: an op that releases a microbatch holds it until then."""
        if self._kinds[number] != "forward":
            self._in_flight.record(self._passes.ops[number])
