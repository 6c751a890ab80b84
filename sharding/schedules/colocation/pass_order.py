"""The order of forwards and backwards, from the times at which they would start."""

import dataclasses
import functools
import heapq
from collections.abc import Mapping

from sharding.schedules.hop_order import HopsOfPasses, OrderWithHops, order_hops
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.ops import OpGraph, PipelineOp
from sharding.schedules.pass_seconds import OpTimes, last_end, pass_times

Bundles = Mapping[PipelineOp, PipelineOp]
"""Ops that take another op into their program, and that op."""


def order_passes(
    passes: NumberedPasses, starts: Mapping[PipelineOp, float], bundles: Bundles
) -> tuple[PipelineOp, ...]:
    """Returns all forwards and backwards by when they start, each after the ops that it depends on.

    Both ops of a bundle follow what either depends on, one right after the other.

    Args:
        passes: The step, in whose order ops that start together follow each other.
        starts: When each would start, in seconds.
        bundles: The ops that run in one program; such a program starts with the first of its ops.
    """
    heads = list(range(len(passes.ops)))  # by op, the first op of its program
    taken_by: dict[int, int] = {}
    for host, taken in bundles.items():
        taken_by[passes.numbers[host]] = passes.numbers[taken]
        heads[passes.numbers[taken]] = passes.numbers[host]
    missing = [0] * len(heads)
    for number, head in enumerate(heads):
        missing[head] += passes.awaited_counts[number]
    keys = _keys(passes, starts)
    ready = [keys[number] for number, head in enumerate(heads) if head == number and not missing[number]]
    heapq.heapify(ready)
    order: list[PipelineOp] = []
    while ready:
        number = heapq.heappop(ready)[-1]
        for done in (number, taken_by[number]) if number in taken_by else (number,):
            order.append(passes.ops[done])
            for dependent in passes.dependents[done]:
                head = heads[dependent]
                missing[head] -= 1
                if not missing[head]:
                    heapq.heappush(ready, keys[head])
    return tuple(order)


def _keys(passes: NumberedPasses, starts: Mapping[PipelineOp, float]) -> list[tuple[float, int, int, int]]:
    """By op, when it starts, and what orders ops that start together; last its number."""
    stage_count = len(passes.op_graph.stage_graph.stages)
    return [
        (starts[op], op.microbatch, stage if op.kind == "forward" else 2 * stage_count - stage, number)
        for number, (op, stage) in enumerate(zip(passes.ops, passes.stages, strict=True))
    ]


@dataclasses.dataclass(frozen=True)
class OrderedPasses:
    """Forwards and backwards in an order, and when each runs in it.

    Attributes:
        op_graph: The step, with the seconds of every stage.
        ops: The forwards and backwards.
        bundles: The ops that take the next one into their program, and that op.
        times: Start and end of each if each starts as soon as it can, in seconds.
        hops: Its hops.
    """

    op_graph: OpGraph
    ops: tuple[PipelineOp, ...]
    bundles: Bundles
    times: OpTimes
    hops: HopsOfPasses

    @classmethod
    def by_start(
        cls, passes: NumberedPasses, starts: Mapping[PipelineOp, float], bundles: Bundles, hops: HopsOfPasses
    ) -> "OrderedPasses":
        """Orders forwards and backwards by when they would start."""
        ops = order_passes(passes, starts, bundles)
        return cls(passes.op_graph, ops, bundles, pass_times(passes.op_graph, ops, frozenset(bundles.values())), hops)

    @property
    def seconds(self) -> float:
        """Seconds of all forwards and backwards where hops take none."""
        return last_end(self.times)

    @functools.cached_property
    def with_hops(self) -> OrderWithHops:
        """The same order with the hops among them, which occupy both their ends; it takes no less than `seconds`."""
        taken = set(self.bundles.values())
        programs = [(op, self.bundles[op]) if op in self.bundles else (op,) for op in self.ops if op not in taken]
        return order_hops(self.op_graph, programs, self.hops)
