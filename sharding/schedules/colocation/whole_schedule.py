"""The schedule of a step from the order of its forwards and backwards: hops, gathers and reductions join them."""

import collections
from collections.abc import Sequence

from sharding.plans.resolved.stage_graph import PipelineRank
from sharding.schedules.colocation.pass_order import OrderedPasses
from sharding.schedules.hop_order import OrderedEvent
from sharding.schedules.numbered_passes import rank_device_bits
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule
from sharding.schedules.weights_and_gradients import WeightsAndGradients


def whole_schedule(op_graph: OpGraph, passes: OrderedPasses, hosts: str | None = None) -> Schedule:
    """The schedule of a step.

    Hops run when both their ends are free (`order_hops`). Weights are gathered before the first input, and gradients
    reduced after the last pass on the devices and the hops that follow it (`WeightsAndGradients`): devices at the other
    end of a hop would else wait for the reductions.

    Args:
        op_graph: The step.
        passes: Its forwards and backwards, perhaps of the same step with seconds of its own.
        hosts: A unit whose reductions take backwards of encoders into their program; None for none. They are backwards
            that follow the last hop from or to the devices, so that no other devices wait for the reduction.
    """
    events = passes.with_hops.events
    writer = _ScheduleWriter(op_graph, passes, _ReductionHosts(op_graph, hosts, events))
    for event in events:
        writer.add(event)
    return writer.schedule()


class _ReductionHosts:
    """Which devices have nothing more to do for a unit and for other devices, so that they can reduce its gradients.

    Args:
        op_graph: The step.
        unit: The unit; None for none.
        events: All that happens in the step.
    """

    def __init__(self, op_graph: OpGraph, unit: str | None, events: Sequence[OrderedEvent]) -> None:
        self._op_graph, self._graph, self._unit = op_graph, op_graph.stage_graph, unit
        self._ranks = {self._graph.rank_devices[rank]: rank for rank in self._graph.stages_of if rank[0] == unit}
        self._busy_ranks: dict[frozenset[int], list[PipelineRank]] = {}
        self._left: collections.Counter[PipelineRank] = collections.Counter()
        of_events = [self._ranks_of(event) for event in events]
        for ranks in of_events:
            for rank in ranks:
                self._left[rank] += 1
        self._to_come = iter(of_events)

    def record_next(self) -> None:
        """Counts the next event, which has happened."""
        for rank in next(self._to_come):
            self._left[rank] -= 1

    def rank_on(self, devices: frozenset[int]) -> PipelineRank | None:
        """The unit's rank on exactly these devices, if nothing is left for it and its hops; else None."""
        rank = self._ranks.get(devices)
        return None if rank is None or self._left[rank] else rank

    def _ranks_of(self, event: OrderedEvent) -> Sequence[PipelineRank]:
        """The unit's ranks of an op that has ended, or on the devices of a hop between different ones."""
        if not self._ranks or event.kind == "start":
            return ()
        op = event.ops[0]
        if event.kind == "done":
            return (self._graph.rank_of_microbatch(op.stage_id, op.microbatch),) if op.unit == self._unit else ()
        devices = self._op_graph.devices_of(op)
        if len(devices) == len(self._graph.rank_devices[self._graph.rank_of_microbatch(op.stage_id, op.microbatch)]):
            return ()
        if devices not in self._busy_ranks:
            self._busy_ranks[devices] = [rank for held, rank in self._ranks.items() if not held.isdisjoint(devices)]
        return self._busy_ranks[devices]


class _ScheduleWriter:
    """Writes ops in the order of the events of a step."""

    def __init__(self, op_graph: OpGraph, passes: OrderedPasses, hosts: _ReductionHosts) -> None:
        self._op_graph, self._graph, self._hosts = op_graph, op_graph.stage_graph, hosts
        self._collectives = WeightsAndGradients(op_graph, rank_device_bits(self._graph))
        self._order: list[PipelineOp] = []
        self._bundled = set(passes.bundles.values())

    def add(self, event: OrderedEvent) -> None:
        """Writes what happens in a step."""
        if event.kind == "start":
            self._start(event.ops)
        elif event.kind == "hop":
            self._order += [*self._collectives.before(event.ops[0]), *event.ops]
        else:
            self._order += self._collectives.after(event.ops[0])
        self._hosts.record_next()

    def _start(self, program: tuple[PipelineOp, ...]) -> None:
        """Writes an op that starts, or both ops of a bundle, behind what makes their weights."""
        for op in program:
            self._order += self._collectives.before(op)
        first = program[0]
        if len(program) == 1 and first.kind == "backward" and (reduction := self._reduction_beside(first)):
            self._order.append(reduction)
            self._bundled.add(first)
        self._order += program

    def _reduction_beside(self, op: PipelineOp) -> PipelineOp | None:
        """A reduction on exactly the devices of an op, where they have nothing else to do for its unit."""
        devices = self._op_graph.devices_of(op)
        rank = self._hosts.rank_on(devices)
        for stage in () if rank is None else self._graph.stages_of[rank]:
            if self._graph.devices[stage] == devices and (reduction := self._collectives.reduce_now(stage)):
                return reduction[0]
        return None

    def schedule(self) -> Schedule:
        """Returns the ops written so far, and the ops that end the step."""
        return Schedule(self._op_graph, (*self._order, *self._collectives.rest()), frozenset(self._bundled))
