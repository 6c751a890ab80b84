"""List scheduling in slots of equal length: in each slot every free stage runs the most urgent op that is ready."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sharding.plans.stage_graph import PipelineRank, StageId, device_classes
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp, Schedule, ScheduleError

Priority = Callable[[PipelineOp], tuple[Any, ...]]
"""Sort key of a forward or backward; the least is the most urgent. It grows with the microbatch in every stage."""


class InFlightMicrobatches:
    """Counts the microbatches that every pipeline rank holds; one that is in several chunks of a rank counts in each.

    A stage that runs a backward holds the residuals of a microbatch from its forward to its backward. A stage that
    runs none holds its output until the forward of every stage it feeds has run.
    """

    def __init__(self, op_graph: OpGraph) -> None:
        self._op_graph = op_graph
        stages = op_graph.stage_graph.stages
        self._forwards = dict.fromkeys(stages, 0)
        self._backwards = dict.fromkeys(stages, 0)
        self._by_stage = dict.fromkeys(stages, 0)
        self._by_rank = dict.fromkeys(op_graph.stage_graph.stages_of, 0)

    def record(self, op: PipelineOp) -> None:
        """Counts an op that has run; kinds other than forward and backward change nothing."""
        if op.kind == "forward":
            self._forwards[op.stage_id] += 1
            for source in self._op_graph.stage_graph.sources[op.stage_id]:
                self._recount(source)
        elif op.kind == "backward":
            self._backwards[op.stage_id] += 1
        else:
            return
        self._recount(op.stage_id)

    def _recount(self, stage: StageId) -> None:
        graph, forwards = self._op_graph.stage_graph, self._forwards[stage]
        if stage in self._op_graph.backward_stages:
            in_flight = forwards - self._backwards[stage]
        else:
            in_flight = forwards - min((self._forwards[target] for target in graph.targets[stage]), default=forwards)
        self._by_rank[graph.rank_of[stage]] += in_flight - self._by_stage[stage]
        self._by_stage[stage] = in_flight

    def __getitem__(self, rank: PipelineRank) -> int:
        return self._by_rank[rank]

    def is_oldest(self, microbatch: int) -> bool:
        """Whether every stage has finished all microbatches before this one."""
        backward_stages = self._op_graph.backward_stages
        return all(
            (self._backwards if stage in backward_stages else self._forwards)[stage] >= microbatch
            for stage in self._op_graph.stage_graph.stages
        )


def list_schedule(
    op_graph: OpGraph,
    max_in_flight: Mapping[PipelineRank, int],
    priority: Priority,
    fixed_orders: Mapping[PipelineRank, Sequence[PipelineOp]] | None = None,
) -> Schedule:
    """Orders all ops of a pass.

    In each slot the ready forwards and backwards are taken by priority; an op needs all its devices free. Hops follow
    right after the op that produces their array and take no slot. A rank that holds as many microbatches as it may
    starts no forward. Where limits and fixed orders leave nothing that may run, the oldest microbatch in flight runs
    its next op in spite of them: it depends on no other microbatch.

    Args:
        op_graph: The ops and their dependencies.
        max_in_flight: How many microbatches each rank may hold at once; at least 1.
        priority: Which ops run first.
        fixed_orders: For some ranks, all their forwards and backwards in an order to keep, even if slots stay empty.
    """
    graph = op_graph.stage_graph
    for rank in graph.stages_of:
        if max_in_flight[rank] < 1:
            raise ScheduleError(f"stage {rank} may hold {max_in_flight[rank]} microbatches; it must hold at least 1")
    ready, in_flight, device_bits = (
        _ReadyOps(op_graph, priority),
        InFlightMicrobatches(op_graph),
        _device_bits(op_graph),
    )
    remaining = {rank: collections.deque(ops) for rank, ops in (fixed_orders or {}).items()}
    order: list[PipelineOp] = []

    def run(ops: Iterable[PipelineOp]) -> None:
        for op in ops:
            order.append(op)
            ready.finish(op)

    def may_run(op: PipelineOp) -> bool:
        rank = graph.rank_of[op.stage_id]
        next_in_order = rank not in remaining or remaining[rank][0] == op
        return next_in_order and (op.kind == "backward" or in_flight[rank] < max_in_flight[rank])

    def fill_slot(allowed: Callable[[PipelineOp], bool]) -> list[PipelineOp]:
        busy, chosen = 0, []
        for op in ready:
            if not busy & device_bits[op.stage_id] and allowed(op):
                busy |= device_bits[op.stage_id]
                chosen.append(op)
        return chosen

    run(op_graph.prologue)
    while ready:
        for op in fill_slot(may_run) or fill_slot(lambda op: in_flight.is_oldest(op.microbatch)):
            hops = op_graph.forward_hops if op.kind == "forward" else op_graph.backward_hops
            run((op, *hops(op.stage_id, op.microbatch)))
            in_flight.record(op)
            if graph.rank_of[op.stage_id] in remaining:
                remaining[graph.rank_of[op.stage_id]].remove(op)
    return Schedule(op_graph, (*order, *op_graph.epilogue))


def warm_up_order(op_graph: OpGraph, rank: PipelineRank, warm_up: int) -> list[PipelineOp]:
    """All forwards and backwards of a rank: `warm_up` forwards, then forward and backward alternating, then the rest.

    Forwards run in groups of pp microbatches: a group through the rank's first chunk, then through its second, and so
    on; backwards go through the chunks in reverse (Narayanan et al., arXiv 2104.04473, section 2.2).
    """
    size, count = op_graph.stage_graph.pp.get(rank[0], 1), op_graph.microbatches
    groups = [range(first, min(first + size, count)) for first in range(0, count, size)]
    stages = op_graph.stage_graph.stages_of[rank]
    forwards = [PipelineOp("forward", *stage, number) for group in groups for stage in stages for number in group]
    backwards = [
        PipelineOp("backward", *stage, number) for group in groups for stage in reversed(stages) for number in group
    ]
    pairs = itertools.zip_longest(forwards[warm_up:], backwards)
    ordered = (*forwards[:warm_up], *(op for pair in pairs for op in pair if op))
    return [op for op in ordered if op.kind == "forward" or op.stage_id in op_graph.backward_stages]


class _ReadyOps:
    """The forwards and backwards whose dependencies have run: the first of each stage and kind, most urgent first."""

    def __init__(self, op_graph: OpGraph, priority: Priority) -> None:
        self._priority = priority
        stages = op_graph.stage_graph.stages
        self._position = {stage: position for position, stage in enumerate(stages)}
        self._unmet = {op: len(dependencies) for op, dependencies in op_graph.dependencies.items()}
        self._dependents: dict[PipelineOp, list[PipelineOp]] = collections.defaultdict(list)
        for op, dependencies in op_graph.dependencies.items():
            for dependency in dependencies:
                self._dependents[dependency].append(op)
        # Microbatches pass a stage in order, so they become ready in order.
        self._ready: dict[tuple[OpKind, StageId], collections.deque[PipelineOp]] = collections.defaultdict(
            collections.deque
        )
        self._heads: dict[tuple[OpKind, StageId], tuple[tuple[Any, ...], int, PipelineOp]] = {}
        self._unfinished = op_graph.microbatches * (len(stages) + len(op_graph.backward_stages))

    def __len__(self) -> int:
        """Number of forwards and backwards that have not run."""
        return self._unfinished

    def __iter__(self) -> Iterator[PipelineOp]:
        return (op for _, _, op in sorted(self._heads.values()))

    def finish(self, op: PipelineOp) -> None:
        """Records that an op has run; forwards and backwards that waited for nothing else become ready."""
        if op.kind in ("forward", "backward"):
            self._unfinished -= 1
            self._ready[op.kind, op.stage_id].popleft()
            self._update_head(op.kind, op.stage_id)
        for dependent in self._dependents[op]:
            self._unmet[dependent] -= 1
            if not self._unmet[dependent] and dependent.kind in ("forward", "backward"):
                self._ready[dependent.kind, dependent.stage_id].append(dependent)
                self._update_head(dependent.kind, dependent.stage_id)

    def _update_head(self, kind: OpKind, stage: StageId) -> None:
        ready = self._ready[kind, stage]
        if ready:
            self._heads[kind, stage] = (self._priority(ready[0]), self._position[stage], ready[0])
        else:
            del self._heads[kind, stage]


def _device_bits(op_graph: OpGraph) -> dict[StageId, int]:
    """The devices of every stage as the bits of an integer, one bit for each class of devices in the same stages."""
    devices = op_graph.stage_graph.devices
    classes = device_classes(devices.values())
    return {
        stage: sum(1 << bit for bit, members in enumerate(classes) if members[0] in stage_devices)
        for stage, stage_devices in devices.items()
    }
