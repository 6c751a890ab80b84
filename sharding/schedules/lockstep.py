"""1F1B and interleaved 1F1B in lockstep: what every pipeline rank does in each tick of one program on all of them.

All ranks run the same instructions, whose collectives must meet. So a tick has a place for a forward and, after it, one
for a backward, and what a rank sends, another can use from the next tick on:

    tick      0    1    2    3    4    5    6    7    8    9
    rank 0    F0   F1   F2   F3   F4B0 F5B1 B2   B3   B4   B5        3 ranks, 6 microbatches
    rank 1         F0   F1   F2B0 F3B1 F4B2 F5B3 B4   B5
    rank 2              F0B0 F1B1 F2B2 F3B3 F4B4 F5B5

The first ticks have forwards alone on all ranks, the last backwards alone. With v chunks on each of p ranks, there are
v m + p - 1 ticks with forwards, and as many with backwards, where v is 1 or p divides m: the pass takes as long as if
ranks waited for nothing but their inputs. With other m, chunks of the last ones leave gaps, and it takes longer. Each
rank's order is interleaved 1F1B, also with one chunk: rank i then holds up to 2 (p - i) - 1 microbatches, as in eager
1F1B (arXiv 2211.05322, section 4), where 1F1B holds p - i.

Where what the last stage makes goes on to other units, whose gradients return, one program runs all forwards and
another all backwards. Then every rank holds all microbatches:

    tick      0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15
    rank 0    F0   F1   F2   F3   F4   F5                       B0   B1   B2   B3   B4   B5
    rank 1         F0   F1   F2   F3   F4   F5             B0   B1   B2   B3   B4   B5
    rank 2              F0   F1   F2   F3   F4   F5   B0   B1   B2   B3   B4   B5
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.list_scheduling import list_schedule, warm_up_order
from sharding.schedules.one_f_one_b import backwards_first
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule

TickOrder = Literal["forward_only", "1f1b", "gpipe"]
"""Where backwards run: nowhere, in the ticks of forwards, or in ticks after all forwards."""

_UNIT = "unit"
_NONE = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TickOps:
    """The forwards or the backwards of each tick on each rank.

    Attributes:
        runs: Whether there is one; where there is none, the other entries are 0.
        microbatch: Its microbatch.
        chunk: Its chunk.
    """

    runs: Bool[np.ndarray, "t p"]
    microbatch: Int[np.ndarray, "t p"]
    chunk: Int[np.ndarray, "t p"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TickSlots:
    """Where each rank keeps arrays of the microbatches in flight; -1 for none.

    Attributes:
        size: Number of slots, of all ranks alike.
        arrival: The slot of an array that arrives at the start of a tick.
        forward: The slot that the tick's forward reads or writes.
        backward: The slot that the tick's backward reads or writes; then the slot is free.
    """

    size: int
    arrival: Int[np.ndarray, "t p"]
    forward: Int[np.ndarray, "t p"]
    backward: Int[np.ndarray, "t p"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TickTable:
    """A pass over a unit's pipeline in lockstep: t ticks, p pipeline ranks.

    Attributes:
        ranks: Number of pipeline ranks.
        chunks: Chunks of each.
        microbatches: Microbatches of the pass.
        order: The order of forwards and backwards.
        forwards, backwards: The ops of every tick; no backward runs in a pass without them.
        inputs: Slots of activations. A forward's input arrives, or is made in the same tick where nothing precedes it;
            it is kept until the backward.
        residuals: Slots of what a forward saves. A rank without a forward in a tick where others have one has a slot
            too, which holds nothing then, if there is one.
        gradients: Slots of gradients of outputs. The last stage's gradient is made in the tick of its forward, for
            which `forward` has the slot; where backwards are apart in the tick of its backward, before that.
    """

    ranks: int
    chunks: int
    microbatches: int
    order: TickOrder
    forwards: TickOps
    backwards: TickOps
    inputs: TickSlots
    residuals: TickSlots
    gradients: TickSlots

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return len(self.forwards.runs)

    @functools.cached_property
    def first_forwards(self) -> Int[np.ndarray, " t"]:
        """The microbatch that enters the first stage in each tick; -1 for none."""
        return _microbatches_at(self.forwards, 0, 0)

    @functools.cached_property
    def last_forwards(self) -> Int[np.ndarray, " t"]:
        """The microbatch whose forward ends in the last stage in each tick; -1 for none."""
        return _microbatches_at(self.forwards, self.ranks - 1, self.chunks - 1)

    @functools.cached_property
    def first_backwards(self) -> Int[np.ndarray, " t"]:
        """The microbatch whose backward ends in the first stage in each tick; -1 for none."""
        return _microbatches_at(self.backwards, 0, 0)

    @functools.cached_property
    def last_backwards(self) -> Int[np.ndarray, " t"]:
        """The microbatch whose backward begins in the last stage in each tick; -1 for none."""
        return _microbatches_at(self.backwards, self.ranks - 1, self.chunks - 1)

    @property
    def kept_size(self) -> int:
        """Slots of each rank for microbatches of which one rank keeps something for all (`keeper`)."""
        return -(-self.microbatches // self.ranks)

    def keeper(self, microbatch: Any) -> tuple[Any, Any]:
        """The rank that keeps what all ranks have of a microbatch, and its slot: by turns. Traced numbers will do."""
        return microbatch % self.ranks, microbatch // self.ranks

    def segments(self) -> list["TickSegment"]:
        """Runs of ticks in which some rank has a forward, or none has one, and likewise with the other fields."""
        some = [ops.runs.any(axis=1) for ops in (self.forwards, self.backwards)]
        lacks_slots = some[0] & (self.residuals.forward == _NONE).any(axis=1) & (self.residuals.size > 0)
        kinds = np.stack([*some, lacks_slots], axis=1)
        starts = [0, *(1 + np.flatnonzero((kinds[1:] != kinds[:-1]).any(axis=1))).tolist()]
        ends = [*starts[1:], self.ticks]
        return [TickSegment(start, end, *kinds[start].tolist()) for start, end in zip(starts, ends, strict=True)]


class TickSegment(NamedTuple):
    """The ticks from `start` to before `end`, and what some rank runs in each of them.

    Attributes:
        start, end: The ticks.
        has_forwards, has_backwards: Whether there is one.
        lacks_slots: Whether some rank without a forward has no slot for what one saves (`TickTable.residuals`).
    """

    start: int
    end: int
    has_forwards: bool
    has_backwards: bool
    lacks_slots: bool


def _microbatches_at(ops: TickOps, rank: int, chunk: int) -> Int[np.ndarray, " t"]:
    runs = ops.runs[:, rank] & (ops.chunk[:, rank] == chunk)
    return np.where(runs, ops.microbatch[:, rank], _NONE)


def tick_table(ranks: int, chunks: int, microbatches: int, order: TickOrder = "1f1b") -> TickTable:
    """The table of a training pass, or of its forwards alone.

    Args:
        ranks: Pipeline ranks; at least 1.
        chunks: Chunks of each rank; at least 1.
        microbatches: Microbatches of a step; at least 1.
        order: The order of forwards and backwards.
    """
    forward, backward = _pass_ticks(ranks, chunks, microbatches, order)
    shape = (1 + max([*forward.values(), *backward.values()]), ranks)
    inputs, residuals, gradients = [], [], []
    for at, tick in forward.items():
        stage, number = at
        is_last = stage == ranks * chunks - 1
        used = {"forward": tick, "backward": backward.get(at, _NONE)}
        inputs.append(_Lifetime(at, arrival=forward[stage - 1, number] + 1 if stage else _NONE, **used))
        if not backward:
            continue
        residuals.append(_Lifetime(at, **used))
        gradients.append(
            _Lifetime(
                at,
                arrival=_NONE if is_last else backward[stage + 1, number] + 1,
                forward=tick if is_last and order == "1f1b" else _NONE,
                backward=backward[at],
            )
        )
    return TickTable(
        ranks=ranks,
        chunks=chunks,
        microbatches=microbatches,
        order=order,
        forwards=_ops(forward, shape),
        backwards=_ops(backward, shape),
        inputs=_slots(inputs, shape),
        residuals=_with_unused_slots(_slots(residuals, shape), residuals),
        gradients=_slots(gradients, shape),
    )


def _pass_ticks(
    ranks: int, chunks: int, microbatches: int, order: TickOrder
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """The tick of every forward and of every backward, by (stage, microbatch)."""
    ticks = _ticks(lockstep_order(ranks, chunks, microbatches, has_backward=order == "1f1b"), ranks)
    forward, backward = (
        {(op.stage, op.microbatch): tick for op, tick in ticks.items() if op.kind == kind}
        for kind in ("forward", "backward")
    )
    if order == "gpipe":  # from the last stage to the first as forwards from the first to the last
        begin, last = 1 + max(forward.values()), ranks * chunks - 1
        backward = {(last - stage, number): begin + tick for (stage, number), tick in forward.items()}
    return forward, backward


def lockstep_in_flight(op_graph: OpGraph) -> InFlightLimits:
    """How many microbatches each rank holds at once; one that is in several of its chunks counts in each.

    As in `interleaved_in_flight`, but also of ranks with one chunk.
    """
    graph = op_graph.stage_graph
    return {rank: graph.heights[stages[0]] + graph.heights[stages[-1]] - 1 for rank, stages in graph.stages_of.items()}


def lockstep_order(ranks: int, chunks: int, microbatches: int, *, has_backward: bool = True) -> Schedule:
    """The order of every rank's ops, on a chain of stages that starts and ends with this unit."""
    stages = [(_UNIT, number) for number in range(ranks * chunks)]
    graph = StageGraph(
        {stage: frozenset({stage[1] % ranks}) for stage in stages},
        tuple(zip(stages, stages[1:], strict=False)),
        {_UNIT: ranks},
    )
    if not has_backward:
        return interleaved(OpGraph(stage_graph=graph, microbatches=microbatches, with_update=False))
    op_graph = OpGraph(stage_graph=graph, microbatches=microbatches, backward_stages=frozenset(stages))
    limits = lockstep_in_flight(op_graph)
    if chunks > 1:
        return interleaved(op_graph, limits)
    orders = {rank: warm_up_order(op_graph, rank, limit - 1) for rank, limit in limits.items()}
    return list_schedule(op_graph, limits, backwards_first(op_graph), orders)


def _ticks(schedule: Schedule, ranks: int) -> dict[PipelineOp, int]:
    """The earliest tick of every forward and backward in the order of the schedule."""
    ticks: dict[PipelineOp, int] = {}
    previous: dict[int, PipelineOp] = {}
    for op in schedule.ops:
        if op.kind not in ("forward", "backward"):
            continue
        rank, is_forward = op.stage % ranks, op.kind == "forward"
        before = op.stage - 1 if is_forward else op.stage + 1
        sent = ticks.get(PipelineOp(op.kind, op.unit, before, op.microbatch), _NONE)
        last = previous.get(rank)
        free = 0 if last is None else ticks[last] + (is_forward or last.kind == "backward")
        ticks[op] = max(sent + 1, free)
        previous[rank] = op
    return ticks


def _ops(ticks: dict[tuple[int, int], int], shape: tuple[int, int]) -> TickOps:
    """The table of ops given as (stage, microbatch): tick."""
    runs = np.zeros(shape, bool)
    microbatch, chunk = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for (stage, number), tick in ticks.items():
        rank = stage % shape[1]
        runs[tick, rank], microbatch[tick, rank], chunk[tick, rank] = True, number, stage // shape[1]
    return TickOps(runs=runs, microbatch=microbatch, chunk=chunk)


class _Lifetime(NamedTuple):
    """An array that a rank keeps of a (stage, microbatch): when it arrives, and the ticks that use it; -1 for never."""

    at: tuple[int, int]
    arrival: int = _NONE
    forward: int = _NONE
    backward: int = _NONE

    @property
    def _ticks(self) -> list[int]:
        return [tick for tick in self[1:] if tick != _NONE]

    @property
    def start(self) -> int:
        """The first tick in which the array is there."""
        return min(self._ticks)

    @property
    def end(self) -> int:
        """The last tick in which the array is there."""
        return max(self._ticks)


def _slots(lifetimes: Sequence[_Lifetime], shape: tuple[int, int]) -> TickSlots:
    """Returns slots for arrays, different for arrays that are on one rank at one time, and as few as possible."""
    tables = {name: np.full(shape, _NONE, np.int32) for name in _Lifetime._fields[1:]}
    free_from: list[list[int]] = [[] for _ in range(shape[1])]  # by rank and slot
    for lifetime in sorted(lifetimes, key=lambda lifetime: lifetime.start):
        rank = lifetime.at[0] % shape[1]
        slots = free_from[rank]
        slot = next((slot for slot, tick in enumerate(slots) if tick <= lifetime.start), len(slots))
        slots[slot : slot + 1] = [lifetime.end + 1]
        for name, table in tables.items():
            if (tick := getattr(lifetime, name)) != _NONE:
                table[tick, rank] = slot
    return TickSlots(size=max(map(len, free_from)), **tables)


def _with_unused_slots(slots: TickSlots, lifetimes: Sequence[_Lifetime]) -> TickSlots:
    """Returns the slots with one for each rank without a forward where others have one, an empty one if there is."""
    if not lifetimes:
        return slots
    ticks, ranks = slots.forward.shape
    is_held = np.zeros((ticks, ranks, slots.size), bool)
    for lifetime in lifetimes:
        rank = lifetime.at[0] % ranks
        is_held[lifetime.start : lifetime.end + 1, rank, slots.forward[lifetime.forward, rank]] = True
    is_unused = (slots.forward == _NONE) & (slots.forward != _NONE).any(axis=1, keepdims=True) & ~is_held.all(axis=2)
    forward = np.where(is_unused, np.argmin(is_held, axis=2), slots.forward).astype(np.int32)
    return dataclasses.replace(slots, forward=forward)
