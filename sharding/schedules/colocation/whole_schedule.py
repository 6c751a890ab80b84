"""The schedule of a step from the order of its forwards and backwards: hops, gathers and reductions join them."""

import collections
import heapq

from sharding.plans.resolved.stage_graph import PipelineRank
from sharding.schedules.colocation.pass_order import OrderedPasses
from sharding.schedules.numbered_passes import rank_device_bits
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule
from sharding.schedules.weights_and_gradients import WeightsAndGradients


def whole_schedule(op_graph: OpGraph, passes: OrderedPasses, hosts: str | None = None) -> Schedule:
    """The schedule of a step.

    A hop follows the end of the op that produces its array, before any op that starts later. Weights are gathered
    before the first input, and gradients reduced after the last pass on the devices (`WeightsAndGradients`).

    Args:
        op_graph: The step.
        passes: Its forwards and backwards, perhaps of the same step with seconds of its own.
        hosts: A unit whose gathers take an encoder's forward into their program, and its reductions a backward; None
            for none.
    """
    writer = _ScheduleWriter(op_graph, passes, hosts)
    positions = {op: number for number, op in enumerate(passes.ops)}
    taken = set(passes.bundles.values())
    running: list[tuple[float, int, PipelineOp]] = []
    for op in sorted(passes.ops, key=lambda op: (passes.times[op][0], positions[op])):
        if op in taken:
            continue
        start, end = passes.times[op]
        while running and running[0][0] <= start:
            writer.end(heapq.heappop(running)[-1])
        program = (op, passes.bundles[op]) if op in passes.bundles else (op,)
        writer.start(program)
        for program_op in program:
            heapq.heappush(running, (end, positions[program_op], program_op))
    while running:
        writer.end(heapq.heappop(running)[-1])
    return writer.schedule()


class _ScheduleWriter:
    """Writes ops in the order in which forwards and backwards start and end."""

    def __init__(self, op_graph: OpGraph, passes: OrderedPasses, hosts: str | None) -> None:
        self._op_graph, self._graph, self._hosts = op_graph, op_graph.stage_graph, hosts
        self._collectives = WeightsAndGradients(op_graph, rank_device_bits(self._graph))
        self._order: list[PipelineOp] = []
        self._bundled = set(passes.bundles.values())
        self._gathers: dict[frozenset[int], list[PipelineOp]] = {}  # held back for forwards on the same devices
        self._ranks = {self._graph.rank_devices[rank]: rank for rank in self._graph.stages_of if rank[0] == hosts}
        self._left = collections.Counter(
            self._graph.rank_of_microbatch(op.stage_id, op.microbatch) for op in passes.ops if op.unit == hosts
        )

    def start(self, program: tuple[PipelineOp, ...]) -> None:
        """Writes an op that starts, or both ops of a bundle, behind what makes their weights."""
        for op in program:
            self._gather(op)
        first = program[0]
        devices = self._op_graph.devices_of(first)
        bundled = None
        if len(program) == 1 and first.unit != self._hosts:
            bundled = self._gather_beside(devices) if first.kind == "forward" else self._reduction_beside(devices)
        if bundled:
            self._order.append(bundled)
            self._bundled.add(first)
        else:
            self._write_gathers(devices)
        self._order += program

    def end(self, op: PipelineOp) -> None:
        """Writes the hops and reductions that follow an op that ends."""
        if op.unit == self._hosts:
            self._left[self._graph.rank_of_microbatch(op.stage_id, op.microbatch)] -= 1
        hops = self._op_graph.forward_hops if op.kind == "forward" else self._op_graph.backward_hops
        for hop in hops(op.stage_id, op.microbatch):
            self._gather(hop)
            if hop.target_unit == self._hosts:
                self._write_gathers(self._op_graph.devices_of(hop))
            self._order.append(hop)
        reductions = self._collectives.after(op)
        if reductions:
            self._write_gathers(self._graph.all_devices)
        self._order += reductions

    def schedule(self) -> Schedule:
        """Returns the ops written so far, and the ops that end the step."""
        self._write_gathers(self._graph.all_devices)
        return Schedule(self._op_graph, (*self._order, *self._collectives.rest()), frozenset(self._bundled))

    def _gather(self, op: PipelineOp) -> None:
        """Writes what makes the weights for an op, but for gathers that may take a forward into their program."""
        ops = self._collectives.before(op)
        may_wait = not any(collective.kind == "send_tied_weight" for collective in ops)
        for weight_op in ops:
            if may_wait and weight_op.unit == self._hosts:
                self._gathers.setdefault(self._op_graph.devices_of(weight_op), []).append(weight_op)
            else:
                self._order.append(weight_op)

    def _gather_beside(self, devices: frozenset[int]) -> PipelineOp | None:
        """A gather that was held back on exactly these devices."""
        gathers = self._gathers.get(devices)
        return gathers.pop(0) if gathers else None

    def _reduction_beside(self, devices: frozenset[int]) -> PipelineOp | None:
        """A reduction on exactly these devices, whose backwards have all run."""
        rank: PipelineRank | None = self._ranks.get(devices)
        if rank is None or self._left[rank]:
            return None
        for stage in self._graph.stages_of[rank]:
            if self._graph.devices[stage] == devices and (reduction := self._collectives.reduce_now(stage)):
                return reduction[0]
        return None

    def _write_gathers(self, devices: frozenset[int]) -> None:
        """Writes the gathers that were held back on any of these devices."""
        for held in [held for held in self._gathers if not held.isdisjoint(devices)]:
            self._order += self._gathers.pop(held)
