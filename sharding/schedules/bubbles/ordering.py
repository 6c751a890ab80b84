"""From the times of forwards and backwards to a schedule."""

import dataclasses
import heapq
from collections.abc import Iterable, Mapping

from sharding.schedules.list_scheduling import rank_device_bits
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule
from sharding.schedules.pass_seconds import OpTimes, pass_times
from sharding.schedules.weights_and_gradients import WeightsAndGradients

Bundles = Mapping[PipelineOp, PipelineOp]
"""Ops that take another one into their program, and which."""


def order_passes(op_graph: OpGraph, starts: Mapping[PipelineOp, float], bundles: Bundles) -> tuple[PipelineOp, ...]:
    """All forwards and backwards by when they start, each after those that it depends on.

    Both ops of a bundle follow what either depends on, one right after the other.

    Args:
        op_graph: The step, in whose order ops that start together follow each other.
        starts: When each would start.
        bundles: Those that run in one program; such a program starts with the first of its ops.
    """
    first_of = {taken: host for host, taken in bundles.items()}
    missing: dict[PipelineOp, int] = dict.fromkeys(starts, 0)
    for op in starts:
        missing[first_of.get(op, op)] += _dependency_count(op_graph, op)
    position = {stage: number for number, stage in enumerate(op_graph.stage_graph.stages)}

    def key(op: PipelineOp) -> tuple[float, int, int, PipelineOp]:
        number = position[op.stage_id]
        return starts[op], op.microbatch, number if op.kind == "forward" else 2 * len(position) - number, op

    ready = [key(op) for op in starts if not missing[op] and op not in first_of]
    heapq.heapify(ready)
    order: list[PipelineOp] = []
    while ready:
        op = heapq.heappop(ready)[-1]
        program = (op, bundles[op]) if op in bundles else (op,)
        order += program
        for done in program:
            for dependent in _dependents(op_graph, done):
                head = first_of.get(dependent, dependent)
                missing[head] -= 1
                if not missing[head]:
                    heapq.heappush(ready, key(head))
    return tuple(order)


def _dependency_count(op_graph: OpGraph, op: PipelineOp) -> int:
    """How many forwards and backwards an op waits for."""
    graph = op_graph.stage_graph
    return len(graph.sources[op.stage_id]) if op.kind == "forward" else 1 + len(graph.targets[op.stage_id])


def _dependents(op_graph: OpGraph, op: PipelineOp) -> Iterable[PipelineOp]:
    """The forwards and backwards that wait for an op."""
    graph, stage, number = op_graph.stage_graph, op.stage_id, op.microbatch
    backwards = graph.sources[stage]
    if op.kind == "forward":
        yield from (PipelineOp("forward", *target, number) for target in graph.targets[stage])
        backwards = (stage,)
    yield from (PipelineOp("backward", *each, number) for each in backwards if each in op_graph.backward_stages)


@dataclasses.dataclass(frozen=True)
class OrderedPasses:
    """Forwards and backwards in an order, and when each runs in it.

    Attributes:
        op_graph: The step, with the seconds of every stage.
        ops: The forwards and backwards.
        bundles: Those that take the next one into their program, and which that is.
        times: When they run if each starts as soon as it can.
    """

    op_graph: OpGraph
    ops: tuple[PipelineOp, ...]
    bundles: Bundles
    times: OpTimes

    @classmethod
    def by_start(cls, op_graph: OpGraph, starts: Mapping[PipelineOp, float], bundles: Bundles) -> "OrderedPasses":
        """Ordered by when they would start."""
        ops = order_passes(op_graph, starts, bundles)
        return cls(op_graph, ops, bundles, pass_times(op_graph, ops, frozenset(bundles.values())))

    @property
    def seconds(self) -> float:
        """What they take."""
        return max((end for _, end in self.times.values()), default=0.0)


def with_other_ops(op_graph: OpGraph, passes: OrderedPasses) -> Schedule:
    """The schedule of a step from the order of its forwards and backwards.

    A hop follows the end of the op that produces its array, before any op that starts later. Weights are gathered
    before the first input, and gradients reduced after the last pass on the devices (`WeightsAndGradients`).

    Args:
        op_graph: The step.
        passes: Its forwards and backwards, perhaps of the same step with seconds of its own.
    """
    positions = {op: number for number, op in enumerate(passes.ops)}
    collectives = WeightsAndGradients(op_graph, rank_device_bits(op_graph.stage_graph))
    taken = frozenset(passes.bundles.values())
    ended: list[tuple[float, int, PipelineOp]] = []
    order: list[PipelineOp] = []

    def finish(until: float) -> None:
        while ended and ended[0][0] <= until:
            op = heapq.heappop(ended)[-1]
            hops = op_graph.forward_hops if op.kind == "forward" else op_graph.backward_hops
            for hop in hops(op.stage_id, op.microbatch):
                order.extend([*collectives.before(hop), hop])
            order.extend(collectives.after(op))

    for op in sorted(passes.ops, key=lambda op: (passes.times[op][0], positions[op])):
        if op in taken:
            continue
        start, end = passes.times[op]
        finish(start)
        program = (op, passes.bundles[op]) if op in passes.bundles else (op,)
        for each in program:
            order.extend(collectives.before(each))
        order.extend(program)
        for each in program:
            heapq.heappush(ended, (end, positions[each], each))
    finish(float("inf"))
    return Schedule(op_graph, (*order, *collectives.rest()), taken)
