"""DistTrain's inter-microbatch reordering, which fills the intervals between a pipeline's backwards (Algorithm 3).

On the first stage of 1F1B the time between two backwards depends on the stages after it. Forwards fill it; what they
leave is a bubble. The intervals come from the recursion over the whole schedule (`ScheduleReplay`), so that graphs of
stages and virtual stages need no formulas of their own.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.reordering.replay import CellSeconds, ReplayLevel, ScheduleReplay
from sharding.schedules.ops import PipelineOp


@dataclasses.dataclass(frozen=True, eq=False)
class FillableInterval:
    """An interval that forwards of some positions fill: a run of forwards on the first stage, then a backward.

    Attributes:
        begin: The first forward of the interval, which begins when its devices are free.
        end: The backward.
        others: Indices of the seconds of the other positions' forwards in the interval.
        rows: Rows of the cells' seconds for the forwards of one of these positions.
    """

    begin: ReplayLevel
    end: ReplayLevel
    others: Int[np.ndarray, " k"]
    rows: Int[np.ndarray, " r"]


@dataclasses.dataclass(frozen=True, eq=False)
class PositionChoice:
    """What decides the microbatches of consecutive positions; more than one position only in the first interval.

    Attributes:
        positions: The positions.
        intervals: The intervals that their forwards fill; several with virtual stages.
        levels: Ops of the recursion that must be computed before, in order.
    """

    positions: range
    intervals: tuple[FillableInterval, ...]
    levels: tuple[ReplayLevel, ...]


class IntervalFillingOrder:
    """Algorithm 3 for a schedule.

    The smallest microbatch comes first, so that all stages start soon, and the next smallest come last, where nothing
    fills the intervals. In between, the first interval is filled by neighbours in size whose forwards together come
    closest to it, and each further interval by the microbatch that comes closest. With virtual stages a microbatch has
    a forward in several intervals, and the sum of the differences counts. Positions that are not decided yet are taken
    for the mean microbatch.

    The paper's loop needs more microbatches than there are. Here it ends when none is left, and where there are fewer
    than 2p - 1, so that less than p - 1 are left for the first interval, it takes those. The paper's p is the number of
    microbatches whose forwards come before the first backward of the first stage that has one.
    """

    def __init__(self, replay: ScheduleReplay) -> None:
        self._replay = replay
        runs = _runs(replay)
        m = replay.microbatches
        self._last = min(len({op.microbatch for op in runs[0][:-1]}) - 1, m - 1) if runs else m - 1
        self._choices = tuple(self._make_choices(runs)) if runs else ()

    def orders(self, cell_seconds: CellSeconds) -> Int[np.ndarray, "p m"]:
        """The cells of every pipeline in order."""
        m, pipelines = self._replay.microbatches, self._replay.pipelines
        by_cell = cell_seconds.reshape(len(cell_seconds), pipelines, m)
        ascending = np.argsort(by_cell[: len(self._replay.compute_rows)].sum(axis=0), axis=1, kind="stable")
        order = np.zeros((pipelines, m), int)
        order[:, 0] = ascending[:, 0]
        order[:, m - self._last :] = ascending[:, 1 : 1 + self._last][:, ::-1]
        remaining = ascending[:, 1 + self._last :]
        times = np.repeat(by_cell.mean(axis=2)[:, None], m, axis=1)  # [rows, positions, pipelines], means at first

        def set_seconds(positions: Iterable[int]) -> None:
            for position in positions:
                times[:, position] = by_cell[:, np.arange(pipelines), order[:, position]]

        set_seconds((0, *range(m - self._last, m)))
        flat = times.reshape(-1, pipelines)
        ends = self._replay.slot_durations(flat)
        for choice in self._choices:
            for level in choice.levels:
                ends[level.slots] = level.start(ends, flat) + self._replay.level_durations(level, flat)
            first = self._closest(choice, ends, flat, by_cell, remaining)[:, None]
            index = np.arange(remaining.shape[1])
            taken = (index >= first) & (index < first + len(choice.positions))
            order[:, choice.positions] = remaining[taken].reshape(pipelines, -1)
            remaining = remaining[~taken].reshape(pipelines, -1)
            set_seconds(choice.positions)
        return order + m * np.arange(pipelines)[:, None]

    def _closest(
        self,
        choice: PositionChoice,
        ends: Float[np.ndarray, "slots p"],
        times: Float[np.ndarray, "_ p"],
        by_cell: Float[np.ndarray, "r p m"],
        remaining: Int[np.ndarray, "p k"],
    ) -> Int[np.ndarray, " p"]:
        """Index in the remaining cells, ascending, at which the neighbours begin that fill the intervals best."""
        width, pipelines = len(choice.positions), len(remaining)
        difference = np.zeros((pipelines, remaining.shape[1] - width + 1))
        for interval in choice.intervals:
            count = len(interval.begin.slots)
            volume = (interval.end.inputs_ready(ends, times) - interval.begin.devices_free(ends)).mean(axis=0)
            volume = volume - times[interval.others].sum(axis=0) / count
            forwards = np.take_along_axis(by_cell[interval.rows].sum(axis=0) / count, remaining, axis=1)
            sums = np.cumsum(np.pad(forwards, ((0, 0), (1, 0))), axis=1)
            difference += np.abs(sums[:, width:] - sums[:, : sums.shape[1] - width] - volume[:, None])
        return difference.argmin(axis=1)

    def _make_choices(self, runs: Sequence[Sequence[PipelineOp]]) -> Iterable[PositionChoice]:
        m = self._replay.microbatches
        stop = m - self._last
        warm_up = min(self._last + 1, stop)
        groups = [range(1, warm_up)] if warm_up > 1 else []
        groups += [range(position, position + 1) for position in range(warm_up, stop)]
        chosen = {position: number for number, positions in enumerate(groups) for position in positions}
        recursion = _Recursion(self._replay, chosen)
        for number, positions in enumerate(groups):
            intervals = [self._interval(run, positions, recursion) for run in runs if _has_forward_of(run, positions)]
            yield PositionChoice(positions, tuple(intervals), recursion.until(number, intervals))

    def _interval(self, run: Sequence[PipelineOp], positions: range, recursion: "_Recursion") -> FillableInterval:
        *forwards, backward = run
        replicas = range(self._replay.replicas[backward.stage_id])
        slots = {op: [self._replay.slot(op, replica) for replica in replicas] for op in run}
        others = [slot for op in forwards if op.microbatch not in positions for slot in slots[op]]
        microbatch = next(op.microbatch for op in forwards if op.microbatch in positions)
        rows = [
            slot // self._replay.microbatches for op in forwards if op.microbatch == microbatch for slot in slots[op]
        ]
        return FillableInterval(
            recursion.level(slots[forwards[0]]), recursion.level(slots[backward]), np.array(others, int), np.array(rows)
        )


def _has_forward_of(run: Sequence[PipelineOp], positions: range) -> bool:
    return any(op.microbatch in positions for op in run[:-1])


def _runs(replay: ScheduleReplay) -> list[list[PipelineOp]]:
    """Runs of forwards on the first pipeline rank that has a backward, each with the backward after it."""
    graph = replay.op_graph.stage_graph
    first = next((op.stage_id for op in replay.compute_ops if op.stage_id in replay.op_graph.backward_stages), None)
    if first is None:
        return []
    own = [
        op
        for op in replay.compute_ops
        if graph.rank_of_microbatch(op.stage_id, op.microbatch) == graph.ranks_of[first][0]
    ]
    ops = [op for op in own if op.kind != "wgrad"]
    runs: list[list[PipelineOp]] = []
    for kind, group in itertools.groupby(ops, key=lambda op: op.kind):
        same_kind = list(group)
        if kind == "forward":
            runs.append(same_kind)
        else:
            runs[-1].append(same_kind[0])
    return runs


class _Recursion:
    """Which ops have to be computed, or computed again, before the microbatch of each position is chosen."""

    def __init__(self, replay: ScheduleReplay, chosen: dict[int, int]) -> None:
        self._m = replay.microbatches
        self._compute_slots = len(replay.compute_rows) * self._m
        self._location = {
            int(slot): (level, index) for level in replay.levels for index, slot in enumerate(level.slots)
        }
        self._levels = replay.levels
        self._chosen = chosen
        self._final: set[int] = set()
        self._known_from: dict[int, int] = {}
        for level in replay.levels:
            for index, slot in enumerate(level.slots.tolist()):
                own = chosen.get(slot % self._m, -1) if slot < self._compute_slots else -1
                needs = (self._known_from.get(need, -1) for need in self._needs(level, index))
                self._known_from[slot] = max(own, *needs)

    @staticmethod
    def _needs(level: ReplayLevel, index: int) -> list[int]:
        return [*level.device_predecessors[:, index].tolist(), *level.input_producers[:, index].tolist()]

    def level(self, slots: Sequence[int]) -> ReplayLevel:
        """The slots of one op's replicas as a level of their own."""
        level = self._location[slots[0]][0]
        return level.select(np.isin(level.slots, slots))

    def until(self, number: int, intervals: Sequence[FillableInterval]) -> tuple[ReplayLevel, ...]:
        """The ops before the intervals of a choice that are not final yet."""
        needed: set[int] = set()
        pending = [
            int(slot)
            for interval in intervals
            for slot in (*interval.begin.device_predecessors.flat, *interval.end.input_producers.flat)
        ]
        while pending:
            slot = pending.pop()
            if slot in needed or slot in self._final or slot not in self._location:
                continue
            needed.add(slot)
            pending += self._needs(*self._location[slot])
        self._final |= {slot for slot in needed if self._known_from[slot] < number}
        chosen = np.array(sorted(needed), int)
        selected = (level.select(np.isin(level.slots, chosen)) for level in self._levels)
        return tuple(level for level in selected if len(level.slots))
