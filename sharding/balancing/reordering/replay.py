"""A schedule replayed for many orders of its microbatches at once, to the same seconds as `sharding.simulation.simulator`.

Data-parallel instances that exchange nothing but gradients until the end of a step are independent pipelines: with
dp 30, 60 and 60 there are 30, each with one encoder, two backbones and two generators. They may take their microbatches
in different orders, and a step takes as long as the slowest of them. A cell is what one pipeline gets of a microbatch.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.costs.step_costs import StepCosts
from sharding.plans.device_groups import group_devices, source_replicas
from sharding.plans.stage_graph import StageEdge, StageId
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule

CellSeconds = Float[np.ndarray, "r cells"]
"""Seconds of every kind of work and hop of one pipeline, by cell; cell c * m + i is pipeline c's of microbatch i."""

_BLOCK = 256  # orders whose times stay in the processor's cache


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayLevel:
    """Work that waits for nothing of its own level: all of it forwards and backwards, or none.

    Attributes:
        work: Its slots.
        after: Slots that held its devices before; in each row one for every slot, some twice.
        fed: Slots whose outputs it takes, in the same form.
        hops: For each of these, how long the hop takes: row r of a table for position i is r * m + i.
    """

    slots: Int[np.ndarray, " k"]
    device_predecessors: Int[np.ndarray, "_ k"]
    input_producers: Int[np.ndarray, "_ k"]
    hops: Int[np.ndarray, "_ k"]

    def inputs_ready(
        self, ends: Float[np.ndarray, "slots b"], times: Float[np.ndarray, "_ b"]
    ) -> Float[np.ndarray, "k b"]:
        """When the outputs that it takes have come; 0 if it takes none."""
        if not len(self.input_producers):
            return np.zeros((len(self.slots), ends.shape[1]))
        come = ends[self.input_producers[0]] + times[self.hops[0]]
        for fed, hops in zip(self.input_producers[1:], self.hops[1:], strict=True):
            np.maximum(come, ends[fed] + times[hops], out=come)
        return come

    def devices_free(self, ends: Float[np.ndarray, "slots b"]) -> Float[np.ndarray, "k b"]:
        """When its devices are free, and have their weights."""
        found = ends[self.device_predecessors[0]]
        for after in self.device_predecessors[1:]:
            np.maximum(found, ends[after], out=found)
        return found

    def start(self, ends: Float[np.ndarray, "slots b"], times: Float[np.ndarray, "_ b"]) -> Float[np.ndarray, "k b"]:
        """When both is so."""
        free = self.devices_free(ends)
        return np.maximum(free, self.inputs_ready(ends, times), out=free) if len(self.input_producers) else free

    def select(self, chosen: Bool[np.ndarray, " k"]) -> "ReplayLevel":
        """Some of it."""
        return ReplayLevel(
            self.slots[chosen],
            self.device_predecessors[:, chosen],
            self.input_producers[:, chosen],
            self.hops[:, chosen],
        )


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduleReplay:
    """One pipeline's part of a schedule.

    A slot is one op on one instance. Slot `r * m + i` of the first is row r of a table for the microbatch at position
    i; behind them stand those that take the same time in any order, and last one that ends at 0.

    Attributes:
        work: What a step does.
        pipelines: How many there are.
        instances: Of every stage in one pipeline.
        computing: Rows of a table that stand for forwards and backwards: (kind, node, instance); hops follow.
        hopping: Rows that stand for hops: (kind, edge, instance of the receiver). One more stands for none.
        constant: Seconds of the slots behind those of the table.
        levels: All slots, in an order in which each finds what it needs.
        last: Slots after which the step is over.
        parts: The forwards and backwards in the schedule's order.
    """

    work: OpGraph
    pipelines: int
    replicas: Mapping[StageId, int]
    compute_rows: tuple[tuple[str, StageId, int], ...]
    hopping: tuple[tuple[str, StageEdge, int], ...]
    constant: Float[np.ndarray, " c"]
    levels: tuple[ReplayLevel, ...]
    last: Int[np.ndarray, " e"]
    compute_ops: tuple[PipelineOp, ...]

    @property
    def microbatches(self) -> int:
        """Of a step: cells of a pipeline."""
        return self.work.microbatches

    def cell_seconds(self, costs: StepCosts) -> CellSeconds:
        """The seconds of all cells."""
        rows = [
            self._by_cell(getattr(costs.stages[node], kind), instance) for kind, node, instance in self.compute_rows
        ]
        hops = {"hop": costs.hops, "hop_back": costs.hops_back}
        rows += [self._by_cell(hops[kind][edge], instance) for kind, edge, instance in self.hopping]
        return np.stack([*rows, np.zeros_like(rows[0])])

    def _by_cell(self, seconds: Float[np.ndarray, "m i"], instance: int) -> Float[np.ndarray, " cells"]:
        return seconds.reshape(self.microbatches, self.pipelines, -1)[:, :, instance].T.ravel()

    def step_seconds(self, table: CellSeconds, orders: Int[np.ndarray, "b m"]) -> Float[np.ndarray, " b"]:
        """What a step takes in which every pipeline's cells are an order's."""
        blocks = [self._ends(table, orders[first : first + _BLOCK]) for first in range(0, len(orders), _BLOCK)]
        return np.concatenate([ends[self.last].max(axis=0) for ends in blocks])

    def _ends(self, table: CellSeconds, orders: Int[np.ndarray, "b m"]) -> Float[np.ndarray, "slots b"]:
        times = np.take(table, orders.T.ravel(), axis=1).reshape(-1, len(orders))
        ends = self.slot_durations(times)
        for level in self.levels:
            ends[level.slots] += level.start(ends, times)
        return ends

    def slot_durations(self, times: Float[np.ndarray, "_ b"]) -> Float[np.ndarray, "slots b"]:
        """Seconds of every slot, given those of all rows of a table at all positions."""
        timed = len(self.compute_rows) * self.microbatches
        found = np.empty((timed + len(self.constant) + 1, times.shape[1]))
        found[:timed] = times[:timed]
        found[timed:-1] = self.constant[:, None]
        found[-1] = 0.0
        return found

    def level_durations(self, level: ReplayLevel, times: Float[np.ndarray, "_ b"]) -> Float[np.ndarray, "k b"]:
        """Seconds of one level's slots."""
        slots = level.slots
        timed = len(self.compute_rows) * self.microbatches
        if slots[0] < timed:
            return times[slots]
        return np.repeat(self.constant[slots - timed, None], times.shape[1], axis=1)

    def slot(self, part: PipelineOp, instance: int) -> int:
        """Of a forward or backward."""
        return self._rows[part.kind, part.stage_id, instance] * self.microbatches + part.microbatch

    @functools.cached_property
    def _rows(self) -> Mapping[tuple[str, StageId, int], int]:
        return {key: row for row, key in enumerate(self.compute_rows)}


def build_replay(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]], schedule: Schedule, work: OpGraph, costs: StepCosts, rows: int
) -> ScheduleReplay:
    """The replay of a schedule on stages whose devices are given as [instances, tensor ranks].

    Args:
        devices: Of every stage.
        schedule: An order that `check_schedule` accepts.
        work: What it does.
        costs: Of which it takes what every microbatch has in common: gathers, reductions, updates.
        rows: Of a microbatch; a pipeline gets at least one.
    """
    pipelines = count_pipelines(devices, rows)
    instances = {node: len(held) // pipelines for node, held in devices.items()}
    rows = {node: groups[: instances[node]] for node, groups in group_devices(devices).groups_of.items()}
    recorder = _Recorder(work, costs, instances, rows)
    for op in schedule.ops:
        recorder.add(op)
    return recorder.replay(pipelines)


def count_pipelines(devices: Mapping[StageId, Int[np.ndarray, "_ _"]], rows: int) -> int:
    """How many independent and equal pipelines stages make: the most that divide all instances and a microbatch's rows.

    One, where units share devices in such a way that these would not be independent, or not equal.
    """
    groups_of = group_devices(devices).groups_of
    count = math.gcd(rows, *(len(held) for held in groups_of.values()))
    held_by: dict[int, list[tuple[StageId, int, int]]] = collections.defaultdict(list)
    for node, groups in groups_of.items():
        each = len(groups) // count
        for instance, held in enumerate(groups.tolist()):
            for group in set(held):
                held_by[group].append((node, instance // each, instance % each))
    kinds: list[set[frozenset[tuple[StageId, int]]]] = [set() for _ in range(count)]
    for holders in held_by.values():
        owners = {pipeline for _, pipeline, _ in holders}
        if len(owners) > 1:
            return 1
        kinds[owners.pop()].add(frozenset((node, instance) for node, _, instance in holders))
    return count if all(kind == kinds[0] for kind in kinds) else 1


class _Recorder:
    """Notes for every op what it waits for."""

    def __init__(
        self,
        work: OpGraph,
        costs: StepCosts,
        instances: Mapping[StageId, int],
        rows: Mapping[StageId, Int[np.ndarray, "_ _"]],
    ) -> None:
        self._work, self._costs, self._instances, self._rows = work, costs, instances, rows
        self._computing = [
            (kind, node, instance)
            for kind, nodes in (("forward", work.stage_graph.stages), ("backward", work.stage_graph.stages))
            for node in nodes
            if kind == "forward" or node in work.backward_stages
            for instance in range(instances[node])
        ]
        self._hopping = [("hop", (s, t), i) for s, t in work.stage_graph.edges for i in range(instances[t])]
        self._hopping += [
            ("hop_back", (s, t), i)
            for s, t in work.stage_graph.edges
            if s in work.backward_stages
            for i in range(instances[s])
        ]
        self._row = {key: number for number, key in enumerate((*self._computing, *self._hopping))}
        self._timed = len(self._computing) * work.microbatches
        self._constant: list[float] = []
        self._parts: list[PipelineOp] = []
        self._needs: dict[int, tuple[list[int], list[int], list[int]]] = {}
        self._held_by: dict[int, int] = {}
        self._ends: dict[tuple[str, StageId], int] = {}
        self._weights: dict[StageId, list[int]] = collections.defaultdict(list)

    def add(self, part: PipelineOp) -> None:
        """The next op of the schedule."""
        if part.kind in ("forward", "backward"):
            self._parts.append(part)
            for instance in range(self._instances[part.stage_id]):
                self._compute(part, instance)
        elif part.kind == "norm":
            self._together(part, np.concatenate([rows.ravel() for rows in self._rows.values()]), self._costs.norm)
        elif part.kind in ("gather", "reduce"):
            self._together(part, self._rows[part.stage_id], getattr(self._costs.stages[part.stage_id], part.kind))
        elif part.kind == "update":
            for groups in self._rows[part.stage_id]:
                self._together(part, groups, self._costs.stages[part.stage_id].update)
        elif part.kind == "share":
            gathered = [self._ends["gather", node] for node in (part.stage_id, part.target_id)]
            self._weights[part.target_id] += gathered

    def _compute(self, part: PipelineOp, instance: int) -> None:
        kind, node, position = part.kind, part.stage_id, part.microbatch
        forward = kind == "forward"
        fed, hops = [], []
        for other in (self._work.stage_graph.sources if forward else self._work.stage_graph.targets)[node]:
            edge = (other, node) if forward else (node, other)
            hop = self._slot(("hop" if forward else "hop_back", edge, instance), position)
            for feeder in np.unique(source_replicas(self._instances[other], self._instances[node])[instance]).tolist():
                fed.append(self._slot((kind, other, feeder), position))
                hops.append(hop)
        groups = self._rows[node][instance].tolist()
        after = [self._held_by[group] for group in groups if group in self._held_by]
        slot = self._slot((kind, node, instance), position)
        self._needs[slot] = (after + self._weights[node] * forward, fed, hops)
        self._held_by |= dict.fromkeys(groups, slot)

    def _slot(self, key: tuple, position: int) -> int:
        return self._row[key] * self._work.microbatches + position

    def _together(self, part: PipelineOp, held: Int[np.ndarray, "..."], seconds: float) -> None:
        """Work of some devices that takes the same time in every order."""
        slot, groups = self._timed + len(self._constant), np.unique(held).tolist()
        self._constant.append(float(seconds))
        self._needs[slot] = ([self._held_by[group] for group in groups if group in self._held_by], [], [])
        self._ends[part.kind, part.stage_id] = slot
        self._held_by |= dict.fromkeys(groups, slot)

    def replay(self, pipelines: int) -> ScheduleReplay:
        """Of all ops so far."""
        nothing = self._timed + len(self._constant)
        levels = {nothing: -1}
        for slot, (after, fed, _) in self._needs.items():
            levels[slot] = 1 + max((levels[need] for need in (*after, *fed)), default=-1)
        by_level: dict[tuple[int, bool], list[int]] = collections.defaultdict(list)
        for slot in self._needs:
            by_level[levels[slot], slot < self._timed].append(slot)
        made = [self._level(by_level[key], nothing) for key in sorted(by_level)]
        last = np.array(sorted(set(self._held_by.values())))
        return ScheduleReplay(
            self._work,
            pipelines,
            self._instances,
            tuple(self._computing),
            tuple(self._hopping),
            np.array(self._constant),
            tuple(made),
            last,
            tuple(self._parts),
        )

    def _level(self, slots: list[int], nothing: int) -> ReplayLevel:
        after, fed, hops = ([self._needs[slot][part] for slot in slots] for part in range(3))
        held = [list(dict.fromkeys(needs)) or [nothing] for needs in after]
        if any(fed):
            no_hop = len(self._row) * self._work.microbatches
            fed, hops = [needs or [nothing] for needs in fed], [needs or [no_hop] for needs in hops]
        return ReplayLevel(np.array(slots), _padded(held), _padded(fed), _padded(hops))


def _padded(lists: list[list[int]]) -> Int[np.ndarray, "w k"]:
    """One list a column; a shorter one repeats its first entry."""
    longest = max(map(len, lists))
    return (
        np.array([each + each[:1] * (longest - len(each)) for each in lists], int).reshape(len(lists), longest).T.copy()
    )
