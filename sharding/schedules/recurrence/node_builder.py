"""Builds the wait graph of a schedule: the nodes of every op on every replica, and what they wait for."""

import collections
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, ScheduleError
from sharding.schedules.recurrence.graph_builder import RangeWait, WaitGraphBuilder
from sharding.schedules.recurrence.schedule_nodes import COLLECTIVES, BundleNodes, ScheduleNodes
from sharding.schedules.recurrence.shared_devices import HeldDevices, StageDevices
from sharding.schedules.recurrence.wait_tables import OpInBundle, WaitTables


def schedule_nodes(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]], schedule: Schedule, rendezvous: bool
) -> ScheduleNodes:
    """The nodes of a schedule's ops, on every replica, and what they wait for.

    An op can start once its devices have run the ops before it in the schedule and its inputs have arrived. The
    replicas of a stage run independently; the replicas of a hop's target wait for the source replicas whose rows they
    take. `gather` and `reduce` join the replicas of all pipeline replicas of a stage, the transfer of a tied weight or
    gradient joins the replicas of both its stages, `global_norm` all devices. A bundle can start once both its ops
    could, on all replicas of either that share devices; what depends on one of them waits for the end of both.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        schedule: A schedule that `check_schedule` accepts.
        rendezvous: Whether a hop occupies the devices of both its ends; if not, it occupies none.

    Raises:
        ScheduleError: An op comes before its inputs.
    """
    recorder = _OpRecorder(devices, schedule.op_graph, rendezvous)
    if not schedule.bundled:
        for op in schedule.ops:
            _RECORD[op[0]](recorder, op)
        return recorder.build(schedule)
    for first, *others in schedule.by_program:
        if others:
            recorder.bundle(first, others[0])
        else:
            _RECORD[first[0]](recorder, first)
    return recorder.build(schedule)


class _Stage(NamedTuple):
    """The devices that the ops of a stage hold, and the hops that they wait for.

    Attributes:
        held: The replicas that work on each microbatch, and at the end (-1) the replicas of all pipeline replicas of
            its unit.
        inputs: Number of hops that a forward and a backward wait for, where they wait for any.
        runs_all: Whether one program runs the forwards or backwards of all microbatches.
    """

    held: Sequence[HeldDevices]
    inputs: Mapping[OpKind, int]
    runs_all: bool


class _Edge(NamedTuple):
    """The hops from one stage to another in one direction.

    Attributes:
        sent: The kind of op whose output they send.
        source: The stage that sends.
        target: The stage that receives.
        is_exchange: Whether any source replica may send to any target replica.
    """

    sent: OpKind
    source: _Stage
    target: _Stage
    is_exchange: bool


_OpOfStage = tuple[OpKind, str, int, int]
"""Kind, unit, stage and microbatch of an op."""


class _OpRecorder:
    """Goes through a schedule, and knows which nodes held each device last and which inputs have arrived."""

    def __init__(self, devices: Mapping[StageId, Int[np.ndarray, "_ _"]], op_graph: OpGraph, rendezvous: bool) -> None:
        self._op_graph, self._rendezvous = op_graph, rendezvous
        self._devices = StageDevices(devices, op_graph.stage_graph)
        self._stages = {stage: self._stage(op_graph, stage) for stage in op_graph.stage_graph.stages}
        self._nodes = WaitGraphBuilder()
        self._tables = WaitTables(self._nodes, self._devices)
        # Called for many ops, with few arguments that differ.
        self._edge_of = functools.cache(self._edge)
        self._joined = functools.cache(self._devices.joined)
        self._of_hop = functools.cache(self._devices.of_hop)
        # By class of devices, the range of nodes that held it last, and which of its devices each node held.
        self._holders: list[tuple[int, HeldDevices] | None] = [None] * self._devices.class_count
        self._ended: dict[_OpOfStage, int] = {}  # the nodes that end with an op
        self._in_bundles: dict[_OpOfStage, OpInBundle] = {}  # the node with which each of its replicas ends
        self._arrived: dict[_OpOfStage, list[int]] = collections.defaultdict(list)  # hops, by the op that they feed
        self._borrowed: dict[StageId, list[int]] = collections.defaultdict(list)  # tied-weight transfers, by borrower
        self._returned: list[int] = []  # tied-gradient transfers
        self._ranges: list[int] = []  # by op
        self._bundles: list[tuple[int, tuple[OpInBundle, OpInBundle], int, int]] = []

    def _stage(self, op_graph: OpGraph, stage: StageId) -> _Stage:
        graph, pipeline_replicas = op_graph.stage_graph, self._devices.of_pipeline_replicas(stage)
        taken_by = (
            graph.pipeline_replicas[stage[0]].of_microbatch
            if stage[0] in graph.pipeline_replicas
            else (0,) * op_graph.microbatches
        )
        inputs: dict[OpKind, int] = {"forward": len(graph.sources[stage]), "backward": len(graph.targets[stage])}
        return _Stage(
            (*(pipeline_replicas[number] for number in taken_by), self._devices.of_all_pipeline_replicas(stage)),
            {kind: count for kind, count in inputs.items() if count},
            stage in graph.compiled,
        )

    def _edge(self, kind: OpKind, unit: str, stage: int, target_unit: str, target_stage: int) -> _Edge:
        source, target = (unit, stage), (target_unit, target_stage)
        is_exchange = self._op_graph.stage_graph.is_exchange(source, target)
        return _Edge(_SENT[kind], self._stages[source], self._stages[target], is_exchange)

    def build(self, schedule: Schedule) -> ScheduleNodes:
        """Returns the nodes of all ops recorded so far."""
        graph, first_nodes = self._nodes.build()
        replicas = [self._nodes.size(node_range) for node_range in self._ranges]
        bundles = []
        for index, (first, second), *shares in self._bundles:
            replicas[index : index + 2] = [len(first.parts), len(second.parts)]
            nodes = [first_nodes[node_range] + np.arange(self._nodes.size(node_range)) for node_range in shares]
            bundles.append(BundleNodes(index, (first.parts, second.parts), *nodes))
        return ScheduleNodes(schedule, graph, first_nodes[self._ranges], np.array(replicas), tuple(bundles))

    def compute(self, op: PipelineOp) -> None:
        """Records a forward, a backward, a wgrad or an update."""
        kind, unit, number, microbatch, _, _ = op
        stage = self._stages[unit, number]
        held = stage.held[microbatch]
        waits = self._until_free(held)
        if kind in stage.inputs:  # the devices have run what a wgrad needs
            table = self._tables.same(held.count)
            waits += [(hop, table) for hop in self._inputs(op, stage.inputs[kind])]
        if self._borrowed and kind == "forward":
            waits += self._until_borrowed(op, held.count)
        nodes = self._nodes.add(held.count, waits)
        self._occupy(held, nodes)
        self._ended[kind, unit, number, microbatch] = nodes
        self._ranges.append(nodes)

    def collective(self, op: PipelineOp) -> None:
        """Records a gather or a reduction, which starts on all replicas at once."""
        held = self._stages[op.stage_id].held[-1]
        joined = self._nodes.add(1, self._until_free(self._joined(held)))
        nodes = self._nodes.add(held.count, [(joined, self._tables.one_for_all(held.count))])
        self._occupy(held, nodes)
        self._ended[op[:4]] = nodes
        self._ranges.append(nodes)

    def norm(self, op: PipelineOp) -> None:
        """Records the norm of the gradients, which joins all devices."""
        held = self._devices.everything
        waits = self._until_free(held) + [(shares, self._tables.one_for_all(1)) for shares in self._returned]
        nodes = self._nodes.add(1, waits)
        self._occupy(held, nodes)
        self._ranges.append(nodes)

    def hop(self, op: PipelineOp) -> None:
        """Records a hop, which sends an activation, or a gradient back."""
        kind, unit, stage, microbatch, target_unit, target_stage = op
        sent, from_stage, to_stage, is_exchange = self._edge_of(kind, unit, stage, target_unit, target_stage)
        produced = (sent, unit, stage, self._last_awaited(op) if from_stage.runs_all else microbatch)
        output = self._ended.get(produced)
        if output is None:
            raise ScheduleError(f"{op} is scheduled before the {sent} it follows")
        source, target = from_stage.held[microbatch], to_stage.held[microbatch]
        if is_exchange:
            nodes = self._exchange(output, source, target)
        elif produced in self._in_bundles:
            table = self._tables.senders_in_parts(self._in_bundles[produced], target.count)
            nodes = self._send((output, table), source, target)
        else:
            nodes = self._send((output, self._tables.senders(source.count, target.count)), source, target)
        self._arrived[sent, target_unit, target_stage, microbatch].append(nodes)
        self._ranges.append(nodes)

    def _last_awaited(self, op: PipelineOp) -> int:
        """The microbatch whose op ran last, of a stage that needs all; its ops run on the same devices, in turn."""
        kind, (unit, stage) = _SENT[op.kind], op.stage_id
        keys: list[_OpOfStage]
        keys = [(kind, unit, stage, number) for number in self._op_graph.awaited(op.stage_id, op.microbatch)]
        return max(keys, key=lambda key: self._ended.get(key, math.inf))[-1]

    def _send(self, produced: RangeWait, source: HeldDevices, target: HeldDevices) -> int:
        """The nodes of a hop to each replica of its target."""
        if not self._rendezvous:
            return self._nodes.add(target.count, [produced])
        both = self._of_hop(source, target)
        nodes = self._nodes.add(target.count, [produced, *self._until_free(both)])
        self._occupy(both, nodes)
        return nodes

    def _exchange(self, produced: int, source: HeldDevices, target: HeldDevices) -> int:
        """The nodes of a hop that any source replica may send to any target replica."""
        add, one_for_all = self._nodes.add, self._tables.one_for_all
        waits = [self._until_all_end(produced)]
        if not self._rendezvous:
            return add(target.count, [(add(1, waits), one_for_all(target.count))])
        senders = self._joined(source)
        joined = add(1, waits + self._until_free(senders))
        nodes = add(target.count, [(joined, one_for_all(target.count)), *self._until_free(target)])
        self._occupy(target, nodes)
        self._occupy(senders, add(1, [self._until_all_end(nodes)]))
        return nodes

    def share(self, op: PipelineOp) -> None:
        """Records the transfer of a tied weight or its gradient from all replicas of a stage to all of another."""
        add, ready_after = self._nodes.add, "gather" if op.kind == "send_tied_weight" else "reduce"
        stages = (op.stage_id, op.target_id)
        waits = [self._until_all_end(self._ended[ready_after, *stage, -1]) for stage in stages]
        both = self._joined(*(self._stages[stage].held[-1] for stage in stages))
        if self._rendezvous:
            waits = self._until_free(both)
        count = self._stages[op.target_id].held[-1].count
        nodes = add(count, [(add(1, waits), self._tables.one_for_all(count))])
        joined = add(1, [self._until_all_end(nodes)])
        if self._rendezvous:
            self._occupy(both, joined)
        if op.kind == "send_tied_weight":
            self._borrowed[op.target_id].append(joined)
        else:
            self._returned.append(joined)
        self._ranges.append(nodes)

    def bundle(self, first: PipelineOp, second: PipelineOp) -> None:
        """Records a bundle, two ops in one program."""
        ops = (first, second)
        stages = [self._stages[op.stage_id] for op in ops]
        replicas = [stage.held[op.microbatch] for op, stage in zip(ops, stages, strict=True)]
        held, in_bundle = self._tables.bundle(*replicas, first.kind in COLLECTIVES)
        waits = self._until_free(held)
        for op, stage, bundled_op in zip(ops, stages, in_bundle, strict=True):
            if op.kind in stage.inputs:
                waits += [(hop, bundled_op.members) for hop in self._inputs(op, stage.inputs[op.kind])]
            if op.kind == "forward":
                waits += self._until_borrowed(op, held.count)
        first_shares = self._nodes.add(held.count, waits)
        second_shares = self._nodes.add(held.count, [(first_shares, self._tables.same(held.count))])
        self._occupy(held, second_shares)
        self._bundles.append((len(self._ranges), in_bundle, first_shares, second_shares))
        for op, bundled_op in zip(ops, in_bundle, strict=True):
            self._ended[op[:4]], self._in_bundles[op[:4]] = second_shares, bundled_op
            self._ranges.append(second_shares)

    def _until_free(self, held: HeldDevices) -> list[RangeWait]:
        """Waits until all these devices have run what they ran last."""
        if len(held.classes) == 1:
            holder = self._holders[held.classes[0]]
            return [(holder[0], self._tables.until_free(held, holder[1]))] if holder else []
        holders = dict.fromkeys([self._holders[number] for number in held.classes])
        return [(holder[0], self._tables.until_free(held, holder[1])) for holder in holders if holder]

    def _until_all_end(self, nodes: int) -> RangeWait:
        """The wait of one node for all nodes of a range."""
        return nodes, self._tables.all_of(self._nodes.size(nodes))

    def _occupy(self, held: HeldDevices, nodes: int) -> None:
        holder = (nodes, held)
        for number in held.classes:
            self._holders[number] = holder

    def _inputs(self, op: PipelineOp, expected: int) -> Sequence[int]:
        """The hops that an op waits for."""
        arrived = self._arrived.pop(op[:4], ())
        if len(arrived) < expected:
            raise ScheduleError(
                f"{op} is scheduled before what it needs; only {len(arrived)} of {expected} inputs came"
            )
        return arrived

    def _until_borrowed(self, op: PipelineOp, count: int) -> list[RangeWait]:
        """Waits of a forward's nodes until its stage has the tied weights that it borrows."""
        return [(share, self._tables.one_for_all(count)) for share in self._borrowed.get(op.stage_id, ())]


_SENT: dict[OpKind, OpKind] = {"hop": "forward", "gradient_hop": "backward"}

_RECORD: dict[OpKind, Callable[[_OpRecorder, PipelineOp], None]] = {
    "forward": _OpRecorder.compute,
    "backward": _OpRecorder.compute,
    "wgrad": _OpRecorder.compute,
    "hop": _OpRecorder.hop,
    "gradient_hop": _OpRecorder.hop,
    "send_tied_weight": _OpRecorder.share,
    "send_tied_gradient": _OpRecorder.share,
    "gather": _OpRecorder.collective,
    "reduce": _OpRecorder.collective,
    "update": _OpRecorder.compute,
    "global_norm": _OpRecorder.norm,
}
