"""The order of forwards and backwards, from the times at which they would start."""

import dataclasses
import heapq
from collections.abc import Iterable, Mapping

from sharding.schedules.ops import OpGraph, PipelineOp
from sharding.schedules.pass_seconds import OpTimes, last_end, pass_times

Bundles = Mapping[PipelineOp, PipelineOp]
"""Ops that take another op into their program, and that op."""


def order_passes(op_graph: OpGraph, starts: Mapping[PipelineOp, float], bundles: Bundles) -> tuple[PipelineOp, ...]:
    """Returns all forwards and backwards by when they start, each after the ops that it depends on.

    Both ops of a bundle follow what either depends on, one right after the other.

    Args:
        op_graph: The step, in whose order ops that start together follow each other.
        starts: When each would start, in seconds.
        bundles: The ops that run in one program; such a program starts with the first of its ops.
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
    yield from (PipelineOp("backward", *stage, number) for stage in backwards if stage in op_graph.backward_stages)


@dataclasses.dataclass(frozen=True)
class OrderedPasses:
    """Forwards and backwards in an order, and when each runs in it.

    Attributes:
        op_graph: The step, with the seconds of every stage.
        ops: The forwards and backwards.
        bundles: The ops that take the next one into their program, and that op.
        times: Start and end of each if each starts as soon as it can, in seconds.
    """

    op_graph: OpGraph
    ops: tuple[PipelineOp, ...]
    bundles: Bundles
    times: OpTimes

    @classmethod
    def by_start(cls, op_graph: OpGraph, starts: Mapping[PipelineOp, float], bundles: Bundles) -> "OrderedPasses":
        """Orders forwards and backwards by when they would start."""
        ops = order_passes(op_graph, starts, bundles)
        return cls(op_graph, ops, bundles, pass_times(op_graph, ops, frozenset(bundles.values())))

    @property
    def seconds(self) -> float:
        """Seconds of all forwards and backwards."""
        return last_end(self.times)
