"""Replays a schedule for many orders of its microbatches at once, with the same result as the simulator.

Data-parallel replicas that exchange nothing but gradients until the end of a step are independent pipelines: with dp
30, 60 and 60 there are 30, each with one encoder, two backbones and two generators. They may take their microbatches in
different orders, and a step takes as long as the slowest of them. A cell is one pipeline's part of a microbatch.

Of a unit with several copies a pipeline has replicas of each. The copy that works on a cell follows from the cell's
position in the order; the cell takes as long on any of them, the hops to and from it included.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.device_groups import group_devices, replicas_of_microbatch, source_replicas
from sharding.plans.stage_graph import StageEdge, StageId
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, OpKind, PipelineOp, Schedule, ScheduleError

CellSeconds = Float[np.ndarray, "r cells"]
"""Seconds by row, a kind of op of one pipeline, and by cell; cell c * m + i is pipeline c's part of microbatch i."""

_BLOCK = 256  # orders whose times stay in the processor's cache


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayLevel:
    """Ops that wait for nothing in their own level: either all of them ops of `COMPUTE_KINDS`, or none.

    Attributes:
        slots: Their slots.
        device_predecessors: Slots of the ops that held their devices before; each column is for one slot, and shorter
            columns repeat an entry.
        input_producers: Slots whose outputs they take, in the same form.
        hops: For each of these the index of the hop's seconds: r * m + i for row r at position i.
    """

    slots: Int[np.ndarray, " k"]
    device_predecessors: Int[np.ndarray, "_ k"]
    input_producers: Int[np.ndarray, "_ k"]
    hops: Int[np.ndarray, "_ k"]

    def inputs_ready(
        self, ends: Float[np.ndarray, "slots b"], seconds: Float[np.ndarray, "_ b"]
    ) -> Float[np.ndarray, "k b"]:
        """When all inputs have arrived; 0 without inputs."""
        if not len(self.input_producers):
            return np.zeros((len(self.slots), ends.shape[1]))
        ready = ends[self.input_producers[0]] + seconds[self.hops[0]]
        for producers, hops in zip(self.input_producers[1:], self.hops[1:], strict=True):
            np.maximum(ready, ends[producers] + seconds[hops], out=ready)
        return ready

    def devices_free(self, ends: Float[np.ndarray, "slots b"]) -> Float[np.ndarray, "k b"]:
        """When their devices are free and have their weights."""
        free = ends[self.device_predecessors[0]]
        for predecessors in self.device_predecessors[1:]:
            np.maximum(free, ends[predecessors], out=free)
        return free

    def start(self, ends: Float[np.ndarray, "slots b"], seconds: Float[np.ndarray, "_ b"]) -> Float[np.ndarray, "k b"]:
        """When their devices are free and their inputs have arrived."""
        free = self.devices_free(ends)
        return np.maximum(free, self.inputs_ready(ends, seconds), out=free) if len(self.input_producers) else free

    def select(self, chosen: Bool[np.ndarray, " k"]) -> "ReplayLevel":
        """Only the chosen slots."""
        return ReplayLevel(
            self.slots[chosen],
            self.device_predecessors[:, chosen],
            self.input_producers[:, chosen],
            self.hops[:, chosen],
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleReplay:
    """One pipeline's part of a schedule.

    A slot is one op on one replica. The first slots are ops of `COMPUTE_KINDS`: slot `r * m + i` is row r of the cells'
    seconds for the microbatch at position i. Then come ops that take the same time in any order, and a last slot that
    ends at 0.

    Attributes:
        op_graph: All ops of a step.
        pipelines: Number of pipelines.
        replicas: Of every stage in one pipeline, of one pipeline replica.
        compute_rows: Rows of ops of `COMPUTE_KINDS`: (kind, stage, replica); those of hops follow.
        hop_rows: Rows of hops: (kind, edge, replica of the receiver). A last row stands for no hop.
        fixed_seconds: Seconds of the ops that take the same time in any order.
        levels: All slots, in an order in which each finds what it waits for.
        final_slots: Slots after which the step is over.
        compute_ops: The ops of `COMPUTE_KINDS` in the schedule's order.
    """

    op_graph: OpGraph
    pipelines: int
    replicas: Mapping[StageId, int]
    compute_rows: tuple[tuple[OpKind, StageId, int], ...]
    hop_rows: tuple[tuple[str, StageEdge, int], ...]
    fixed_seconds: Float[np.ndarray, " c"]
    levels: tuple[ReplayLevel, ...]
    final_slots: Int[np.ndarray, " e"]
    compute_ops: tuple[PipelineOp, ...]

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, and cells of a pipeline."""
        return self.op_graph.microbatches

    def cell_seconds(self, costs: StepCosts) -> CellSeconds:
        """The seconds of all cells."""
        rows = [self._by_cell(costs.stages[stage].of_pass(kind), replica) for kind, stage, replica in self.compute_rows]
        hops = {"hop": costs.hops, "gradient_hop": costs.gradient_hops}
        rows += [self._by_cell(hops[kind][edge], replica) for kind, edge, replica in self.hop_rows]
        return np.stack([*rows, np.zeros_like(rows[0])])

    def _by_cell(self, seconds: Float[np.ndarray, "m i"], replica: int) -> Float[np.ndarray, " cells"]:
        return seconds.reshape(self.microbatches, self.pipelines, -1)[:, :, replica].T.ravel()

    def step_seconds(self, cell_seconds: CellSeconds, orders: Int[np.ndarray, "b m"]) -> Float[np.ndarray, " b"]:
        """Seconds of a pipeline's step for each of these orders of cells."""
        blocks = [self._ends(cell_seconds, orders[first : first + _BLOCK]) for first in range(0, len(orders), _BLOCK)]
        return np.concatenate([ends[self.final_slots].max(axis=0) for ends in blocks])

    def _ends(self, cell_seconds: CellSeconds, orders: Int[np.ndarray, "b m"]) -> Float[np.ndarray, "slots b"]:
        seconds = np.take(cell_seconds, orders.T.ravel(), axis=1).reshape(-1, len(orders))  # [r * m, b]
        ends = self.slot_durations(seconds)
        for level in self.levels:
            ends[level.slots] += level.start(ends, seconds)
        return ends

    def slot_durations(self, seconds: Float[np.ndarray, "_ b"]) -> Float[np.ndarray, "slots b"]:
        """Seconds of every slot, given those of all rows at all positions."""
        compute_slots = len(self.compute_rows) * self.microbatches
        durations = np.empty((compute_slots + len(self.fixed_seconds) + 1, seconds.shape[1]))
        durations[:compute_slots] = seconds[:compute_slots]
        durations[compute_slots:-1] = self.fixed_seconds[:, None]
        durations[-1] = 0.0
        return durations

    def level_durations(self, level: ReplayLevel, seconds: Float[np.ndarray, "_ b"]) -> Float[np.ndarray, "k b"]:
        """Seconds of one level's slots."""
        slots = level.slots
        compute_slots = len(self.compute_rows) * self.microbatches
        if slots[0] < compute_slots:
            return seconds[slots]
        return np.repeat(self.fixed_seconds[slots - compute_slots, None], seconds.shape[1], axis=1)

    def slot(self, op: PipelineOp, replica: int) -> int:
        """The slot of an op of `COMPUTE_KINDS` on a replica."""
        return self._row_of[op.kind, op.stage_id, replica] * self.microbatches + op.microbatch

    @functools.cached_property
    def _row_of(self) -> Mapping[tuple[str, StageId, int], int]:
        return {key: row for row, key in enumerate(self.compute_rows)}


def build_replay(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    op_graph: OpGraph,
    costs: StepCosts,
    rows: int,
) -> ScheduleReplay:
    """The replay of a schedule.

    Args:
        devices: Of every stage, as [pipeline replicas * replicas, ranks of a replica].
        schedule: An order that `check_schedule` accepts.
        op_graph: Its ops.
        costs: Only what does not depend on the order is taken of them: gathers, reductions, updates.
        rows: Of a microbatch; every pipeline gets at least one.

    Raises:
        ScheduleError: The schedule has bundles, or a stage whose microbatches run in one program.
    """
    if schedule.bundled:
        raise ScheduleError(
            f"{min(schedule.bundled)} runs in one program with another op: with such bundles only the reorderings none "
            "and intra_microbatch are possible"
        )
    graph = op_graph.stage_graph
    if graph.compiled:
        raise ScheduleError(
            f'unit {min(graph.compiled)[0]} has the executor "compiled", so its microbatches run in lockstep: only the '
            "reorderings none and intra_microbatch are possible"
        )
    pipeline_replicas = {stage: graph.pipeline_replica_count(stage[0]) for stage in devices}
    pipelines = 1 if graph.exchanges else count_pipelines(devices, rows, pipeline_replicas)
    replicas = {stage: len(held) // pipeline_replicas[stage] // pipelines for stage, held in devices.items()}
    groups = {
        stage: np.concatenate(
            [of_replica[: replicas[stage]] for of_replica in np.split(groups, pipeline_replicas[stage])]
        )
        for stage, groups in group_devices(devices).groups_of.items()
    }
    builder = _ReplayBuilder(op_graph, costs, replicas, groups)
    for op in schedule.ops:
        builder.add(op)
    return builder.build(pipelines)


def count_pipelines(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]], rows: int, pipeline_replicas: Mapping[StageId, int]
) -> int:
    """Number of independent and equal pipelines: the most that divide all replicas and the rows of a microbatch.

    It is 1 where units share devices in such a way that pipelines would not be independent, or not equal.

    Args:
        devices: Of every stage, as [pipeline replicas * replicas, ranks of a replica].
        rows: Of a microbatch.
        pipeline_replicas: Of every stage.
    """
    groups_of = group_devices(devices).groups_of
    replicas = {stage: len(groups) // pipeline_replicas[stage] for stage, groups in groups_of.items()}
    count = math.gcd(rows, *replicas.values())
    users: dict[int, list[tuple[StageId, int, tuple[int, int]]]] = collections.defaultdict(list)
    for stage, groups in groups_of.items():
        for number, replica_groups in enumerate(groups.tolist()):
            pipeline_replica, replica = divmod(number, replicas[stage])
            pipeline, place = divmod(replica, replicas[stage] // count)
            for group in set(replica_groups):
                users[group].append((stage, pipeline, (pipeline_replica, place)))
    sharing: list[set[frozenset[tuple[StageId, tuple[int, int]]]]] = [set() for _ in range(count)]
    for group_users in users.values():
        pipelines = {pipeline for _, pipeline, _ in group_users}
        if len(pipelines) > 1:
            return 1
        sharing[pipelines.pop()].add(frozenset((stage, replica) for stage, _, replica in group_users))
    return count if all(of_pipeline == sharing[0] for of_pipeline in sharing) else 1


class _ReplayBuilder:
    """Records for every op of one pipeline what it waits for."""

    def __init__(
        self,
        op_graph: OpGraph,
        costs: StepCosts,
        replicas: Mapping[StageId, int],
        groups: Mapping[StageId, Int[np.ndarray, "_ _"]],
    ) -> None:
        self._op_graph, self._costs, self._replicas, self._groups = op_graph, costs, replicas, groups
        stage_graph, has_backward = op_graph.stage_graph, op_graph.backward_stages
        self._compute_rows: list[tuple[OpKind, StageId, int]] = [
            (kind, stage, replica)
            for kind in COMPUTE_KINDS
            for stage in stage_graph.stages
            if kind in op_graph.passes_of(stage)
            for replica in range(replicas[stage])
        ]
        self._hop_rows = [("hop", (s, t), i) for s, t in stage_graph.edges for i in range(replicas[t])]
        self._hop_rows += [
            ("gradient_hop", (s, t), i) for s, t in stage_graph.edges if s in has_backward for i in range(replicas[s])
        ]
        self._row_of: dict[tuple, int] = {key: row for row, key in enumerate((*self._compute_rows, *self._hop_rows))}
        self._compute_slots = len(self._compute_rows) * op_graph.microbatches
        self._fixed_seconds: list[float] = []
        self._compute_ops: list[PipelineOp] = []
        self._waits_for: dict[int, tuple[list[int], list[int], list[int]]] = {}  # predecessors, producers, hops
        self._last_slot_on: dict[int, int] = {}  # by group of devices
        self._fixed_slots: dict[tuple[str, StageId], int] = {}
        self._weight_slots: dict[StageId, list[int]] = collections.defaultdict(list)

    def add(self, op: PipelineOp) -> None:
        """The next op of the schedule."""
        if op.kind in COMPUTE_KINDS:
            self._compute_ops.append(op)
            for replica in range(self._replicas[op.stage_id]):
                self._add_compute(op, replica)
        elif op.kind == "global_norm":
            all_groups = np.concatenate([groups.ravel() for groups in self._groups.values()])
            self._add_fixed(op, all_groups, self._costs.global_norm)
        elif op.kind in ("gather", "reduce"):
            self._add_fixed(op, self._groups[op.stage_id], getattr(self._costs.stages[op.stage_id], op.kind))
        elif op.kind == "update":
            for groups in self._groups[op.stage_id]:
                self._add_fixed(op, groups, self._costs.stages[op.stage_id].update)
        elif op.kind == "send_tied_weight":
            gathered = [self._fixed_slots["gather", stage] for stage in (op.stage_id, op.target_id)]
            self._weight_slots[op.target_id] += gathered

    def _add_compute(self, op: PipelineOp, replica: int) -> None:
        kind, stage, position = op.kind, op.stage_id, op.microbatch
        is_forward = kind == "forward"
        graph = self._op_graph.stage_graph
        producers, hops = [], []
        senders = {"forward": graph.sources, "backward": graph.targets}
        for other in senders[kind][stage] if kind in senders else ():
            edge = (other, stage) if is_forward else (stage, other)
            hop = self._slot(("hop" if is_forward else "gradient_hop", edge, replica), position)
            exchanged = graph.is_exchange(other, stage)
            sources = source_replicas(self._replicas[other], self._replicas[stage], exchanged)[replica]
            for source in np.unique(sources).tolist():
                producers.append(self._slot((kind, other, source), position))
                hops.append(hop)
        groups = replicas_of_microbatch(graph.pipeline_replicas, stage[0], position, self._groups[stage])[
            replica
        ].tolist()
        predecessors = [self._last_slot_on[group] for group in groups if group in self._last_slot_on]
        slot = self._slot((kind, stage, replica), position)
        self._waits_for[slot] = (predecessors + self._weight_slots[stage] * is_forward, producers, hops)
        self._last_slot_on |= dict.fromkeys(groups, slot)

    def _slot(self, key: tuple, position: int) -> int:
        return self._row_of[key] * self._op_graph.microbatches + position

    def _add_fixed(self, op: PipelineOp, groups: Int[np.ndarray, "..."], seconds: float) -> None:
        """An op of some devices together that takes the same time in every order."""
        slot, unique_groups = self._compute_slots + len(self._fixed_seconds), np.unique(groups).tolist()
        self._fixed_seconds.append(float(seconds))
        predecessors = [self._last_slot_on[group] for group in unique_groups if group in self._last_slot_on]
        self._waits_for[slot] = (predecessors, [], [])
        self._fixed_slots[op.kind, op.stage_id] = slot
        self._last_slot_on |= dict.fromkeys(unique_groups, slot)

    def build(self, pipelines: int) -> ScheduleReplay:
        """The replay of all ops so far."""
        zero_slot = self._compute_slots + len(self._fixed_seconds)
        level_of = {zero_slot: -1}
        for slot, (predecessors, producers, _) in self._waits_for.items():
            level_of[slot] = 1 + max((level_of[need] for need in (*predecessors, *producers)), default=-1)
        by_level: dict[tuple[int, bool], list[int]] = collections.defaultdict(list)
        for slot in self._waits_for:
            by_level[level_of[slot], slot < self._compute_slots].append(slot)
        return ScheduleReplay(
            op_graph=self._op_graph,
            pipelines=pipelines,
            replicas=self._replicas,
            compute_rows=tuple(self._compute_rows),
            hop_rows=tuple(self._hop_rows),
            fixed_seconds=np.array(self._fixed_seconds),
            levels=tuple(self._level(by_level[key], zero_slot) for key in sorted(by_level)),
            final_slots=np.array(sorted(set(self._last_slot_on.values()))),
            compute_ops=tuple(self._compute_ops),
        )

    def _level(self, slots: list[int], zero_slot: int) -> ReplayLevel:
        predecessors, producers, hops = ([self._waits_for[slot][part] for slot in slots] for part in range(3))
        predecessors = [list(dict.fromkeys(needs)) or [zero_slot] for needs in predecessors]
        if any(producers):
            no_hop = len(self._row_of) * self._op_graph.microbatches
            producers = [needs or [zero_slot] for needs in producers]
            hops = [needs or [no_hop] for needs in hops]
        return ReplayLevel(np.array(slots), _columns(predecessors), _columns(producers), _columns(hops))


def _columns(lists: list[list[int]]) -> Int[np.ndarray, "w k"]:
    """The lists as columns; a shorter one repeats its first entry."""
    longest = max(map(len, lists))
    padded = [entries + entries[:1] * (longest - len(entries)) for entries in lists]
    return np.array(padded, int).reshape(len(lists), longest).T.copy()
