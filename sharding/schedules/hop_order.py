"""Which hop runs when, where hops occupy the devices at both their ends, beside passes whose order is given.

Between processes a hop is a program of both its ends. It starts when both have ended what they run, and neither starts
anything else meanwhile. An order that has every hop directly after the op that produces its array lets the devices
there wait until the devices at the other end have ended an op, although these may need the array much later. And of
hops between neighbouring ranks that could all run at once, each would wait for the one before it: with p ranks, p - 1
hops one after another where two rounds of them are enough. Here a hop runs once both its ends are free, and other ops
run until then.
"""

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import OpGraph, PipelineOp, StageSeconds
from sharding.schedules.pass_seconds import bundle_seconds, device_lanes

HOP_SHARE = 0.1
"""Seconds of a hop between different devices, as a share of the mean seconds of a pass. Plans do not say what hops
take; that they take some time tells orders apart in which many hops wait for each other."""

Program = tuple[PipelineOp, ...]
"""A pass, or the two passes of a bundle."""


class OrderedEvent(NamedTuple):
    """Something that happens in a step.

    Attributes:
        kind: Whether a program starts, a hop runs, or a pass has ended and all hops that follow it have run.
        ops: The passes of the program; the hop; the pass.
    """

    kind: Literal["start", "hop", "done"]
    ops: Program


class OrderWithHops(NamedTuple):
    """The events of a step in order, and when the last of them ends.

    Attributes:
        events: The events.
        seconds: When the last pass or hop ends. Not less than the seconds of the passes alone.
    """

    events: tuple[OrderedEvent, ...]
    seconds: float


HopsOfPasses = Mapping[PipelineOp, Sequence[tuple[PipelineOp, PipelineOp]]]
"""For every pass, the hops that follow it, each with the pass that takes its array."""


def hops_of_passes(op_graph: OpGraph) -> HopsOfPasses:
    """The hops of all forwards and backwards."""
    passes = (
        PipelineOp(kind, *stage, number)
        for stage in op_graph.stage_graph.stages
        for kind in op_graph.passes_of(stage)
        for number in range(op_graph.microbatches)
    )
    return {
        op: [(hop, PipelineOp(op.kind, *hop.target_id, hop.microbatch)) for hop in op_graph.hops_after(op)]
        for op in passes
    }


def order_hops(
    op_graph: OpGraph,
    programs: Sequence[Program],
    hops: HopsOfPasses | None = None,
    seconds: Mapping[StageId, StageSeconds] | None = None,
) -> OrderWithHops:
    """Places hops among passes; devices keep to the order of their passes, and each pass starts as soon as it can.

    A hop runs once both its ends are free. Devices whose next pass is ready do not wait for the other end of a hop,
    unless that is where the array is needed next and it is free sooner than the pass would let the hop run.

    Args:
        op_graph: The step.
        programs: Its passes in an order in which they can run.
        hops: Its `hops_of_passes`, where they are known.
        seconds: Seconds of the passes of every stage, where the step has none of its own.
    """
    with_seconds = dataclasses.replace(op_graph, seconds=seconds) if seconds else op_graph
    return _HopOrder(with_seconds, programs, hops or hops_of_passes(op_graph)).run()


class _Hop(NamedTuple):
    """A hop.

    Attributes:
        op: The hop.
        sender: Number of the program after which it runs.
        producer: The pass that produces its array.
        consumer: Number of the program that takes its array.
        both: The devices at both its ends, as bits.
        is_local: Whether these are the same.
    """

    op: PipelineOp
    sender: int
    producer: PipelineOp
    consumer: int
    both: int
    is_local: bool


class _HopOrder:
    """Goes through a step by the times at which programs and hops start and end. Sets of devices are bits."""

    def __init__(self, op_graph: OpGraph, programs: Sequence[Program], hops: HopsOfPasses) -> None:
        self._programs = programs
        self._set_programs(op_graph)
        self._set_hops(hops)
        self._now, self._busy = 0.0, 0
        self._free_at = [0.0] * len(self._queues)  # by class of devices, when what it runs ends
        self._heads = [0] * len(self._queues)  # by class of devices, how many of its programs have started
        self._head_counts = [0] * len(programs)  # by program, on how many of its classes of devices it is the next
        self._ready: list[int] = []  # programs that wait for nothing but their devices
        self._pending: list[int] = []  # hops whose arrays are there
        self._ends: list[tuple[float, int, bool, int]] = []  # when, a counter, whether of a hop, number of it
        self._events: list[OrderedEvent] = []
        for lane in range(len(self._queues)):
            self._show_next(lane)

    def _set_programs(self, op_graph: OpGraph) -> None:
        graph, lanes = op_graph.stage_graph, device_lanes(op_graph)
        self._queues: list[list[int]] = [[] for _ in graph.device_classes]
        self._lanes: list[tuple[int, ...]] = []
        self._bits: list[int] = []
        self._seconds: list[float] = []
        bits = {rank: sum(1 << lane for lane in of_rank) for rank, of_rank in lanes.items()}
        for number, program in enumerate(self._programs):
            first = program[0]
            rank = graph.rank_of_microbatch(first.stage_id, first.microbatch)
            self._lanes.append(lanes[rank])
            self._bits.append(bits[rank])
            alone = op_graph.seconds[first.stage_id].of(first.kind)
            self._seconds.append(alone if len(program) == 1 else bundle_seconds(op_graph, *program))
            for lane in lanes[rank]:
                self._queues[lane].append(number)
        self._hop_seconds = HOP_SHARE * sum(self._seconds) / max(len(self._programs), 1)

    def _set_hops(self, hops_of: HopsOfPasses) -> None:
        numbers = {op: number for number, program in enumerate(self._programs) for op in program}
        self._hops: list[_Hop] = []
        self._hops_after: list[list[int]] = [[] for _ in self._programs]
        self._missing = [0] * len(self._programs)
        self._unsent: dict[PipelineOp, int] = {}
        bits = self._bits
        for producer, sender in numbers.items():
            hops = hops_of[producer]
            self._unsent[producer] = len(hops)
            for hop, taken_by in hops:
                consumer = numbers[taken_by]
                both = bits[sender] | bits[consumer]
                self._hops_after[sender].append(len(self._hops))
                self._missing[consumer] += 1
                self._hops.append(_Hop(hop, sender, producer, consumer, both, bits[sender] == bits[consumer]))

    def run(self) -> OrderWithHops:
        """Returns the events."""
        while True:
            while self._run_hops():
                pass
            self._start_programs()
            if not self._ends:
                return OrderWithHops(tuple(self._events), self._now)
            self._finish_next()

    def _run_hops(self) -> bool:
        """Starts the hops whose ends are both free; whether some of them took no time, so that others may start."""
        if not self._pending:
            return False
        waiting, any_ended = [], False
        for number in self._pending:
            hop = self._hops[number]
            if self._busy & hop.both:
                waiting.append(number)
                continue
            self._events.append(OrderedEvent("hop", (hop.op,)))
            self._unsent[hop.producer] -= 1
            if not self._unsent[hop.producer]:
                self._events.append(OrderedEvent("done", (hop.producer,)))
            if hop.is_local:
                self._arrive(hop.consumer)
                any_ended = True
            else:
                self._occupy(hop.both, self._hop_seconds, True, number)
        self._pending = waiting
        return any_ended

    def _start_programs(self) -> None:
        """Starts the programs whose devices are free; they are all on different devices."""
        ready, self._ready = self._ready, []
        for number in ready:
            bits = self._bits[number]
            if self._busy & bits or self._is_worth_waiting(number):
                self._ready.append(number)
                continue
            self._events.append(OrderedEvent("start", self._programs[number]))
            self._occupy(bits, self._seconds[number], False, number)
            for lane in self._lanes[number]:
                self._heads[lane] += 1
                self._show_next(lane)

    def _is_worth_waiting(self, number: int) -> bool:
        """Whether a program lets a hop from its devices run first: to devices that need it next, and are free soon."""
        bits, end = self._bits[number], self._now + self._seconds[number]
        for hop in map(self._hops.__getitem__, self._pending):
            if self._bits[hop.sender] & bits and self._is_next(hop.consumer):
                free_at = max(self._free_at[lane] for lane in self._lanes[hop.consumer])
                if 0 < free_at - self._now < end - free_at:
                    return True
        return False

    def _occupy(self, bits: int, seconds: float, is_hop: bool, number: int) -> None:
        """Lets a program or a hop run from now on."""
        end = self._now + seconds
        self._busy |= bits
        lanes = bits
        while lanes:
            lowest = lanes & -lanes
            self._free_at[lowest.bit_length() - 1] = end
            lanes ^= lowest
        heapq.heappush(self._ends, (end, len(self._events), is_hop, number))

    def _finish_next(self) -> None:
        """Goes on to the moment when the next program or hop ends, and ends all that end then."""
        self._now = self._ends[0][0]
        while self._ends and self._ends[0][0] <= self._now:
            _, _, is_hop, number = heapq.heappop(self._ends)
            if is_hop:
                self._busy &= ~self._hops[number].both
                self._arrive(self._hops[number].consumer)
                continue
            self._busy &= ~self._bits[number]
            self._events += [OrderedEvent("done", (op,)) for op in self._programs[number] if not self._unsent[op]]
            self._pending += self._hops_after[number]

    def _arrive(self, consumer: int) -> None:
        """Records that an input of a program is there."""
        self._missing[consumer] -= 1
        if not self._missing[consumer] and self._is_next(consumer):
            self._ready.append(consumer)

    def _show_next(self, lane: int) -> None:
        """Records that the devices of a class have started all before their next program."""
        if self._heads[lane] < len(self._queues[lane]):
            number = self._queues[lane][self._heads[lane]]
            self._head_counts[number] += 1
            if self._is_next(number) and not self._missing[number]:
                self._ready.append(number)

    def _is_next(self, number: int) -> bool:
        """Whether a program is the next on all its devices; a program that has started is not."""
        return self._head_counts[number] == len(self._lanes[number])
