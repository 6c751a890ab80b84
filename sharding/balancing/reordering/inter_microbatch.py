"""DistTrain's order of microbatches, which fills the intervals between a pipeline's backwards (Algorithm 3).

On the first stage of 1F1B the time between two backwards is as long as the stages behind it make it. Forwards fill it;
what they leave is a bubble. The intervals come from the recursion over the whole schedule (`Replay`), so that graphs of
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
class Filling:
    """What some positions' forwards fill of one interval: a run of forwards on the first stage and a backward behind.

    Attributes:
        begin: The first forward of the interval, which begins when its devices are free.
        end: The backwards.
        others: Entries of the times of all rows at all positions: the other positions' forwards in the interval.
        rows: Rows of a table for the forwards of one of these positions.
    """

    begin: ReplayLevel
    end: ReplayLevel
    others: Int[np.ndarray, " k"]
    rows: Int[np.ndarray, " r"]


@dataclasses.dataclass(frozen=True, eq=False)
class PositionChoice:
    """How the microbatches of consecutive positions are chosen; more than one position only in the first interval.

    Attributes:
        positions: The positions.
        fillings: The intervals with their forwards, with virtual stages several.
        levels: Ops of the recursion that must be known before, in order.
    """

    positions: range
    fillings: tuple[Filling, ...]
    levels: tuple[ReplayLevel, ...]


class IntervalFillingOrder:
    """Algorithm 3 for a schedule.

    The smallest microbatch comes first, so that all stages start soon, and the next smallest come last, where nothing
    fills the intervals. In between the first interval is filled by neighbours in size whose forwards together come
    closest to it, each further one by the one that comes closest; with virtual stages a microbatch has a forward in
    several intervals, and the sum of the differences counts. What has no place yet is taken for the mean microbatch.

    The paper's loop asks for more microbatches than there are. Here it ends when none is left, and where there are
    fewer than 2p - 1, so that less than p - 1 are left for the first interval, it takes those. The paper's p is the
    number of microbatches whose forwards come before the first backward of the first stage that has one.
    """

    def __init__(self, replay: ScheduleReplay) -> None:
        self._replay = replay
        runs = _runs(replay)
        m = replay.microbatches
        self._last = min(len({part.microbatch for part in runs[0][:-1]}) - 1, m - 1) if runs else m - 1
        self._choices = tuple(self._make_choices(runs)) if runs else ()

    def orders(self, table: CellSeconds) -> Int[np.ndarray, "p m"]:
        """Every pipeline's cells in order."""
        m, pipelines = self._replay.microbatches, self._replay.pipelines
        by_cell = table.reshape(len(table), pipelines, m)
        ascending = np.argsort(by_cell[: len(self._replay.compute_rows)].sum(axis=0), axis=1, kind="stable")
        found = np.zeros((pipelines, m), int)
        found[:, 0] = ascending[:, 0]
        found[:, m - self._last :] = ascending[:, 1 : 1 + self._last][:, ::-1]
        left = ascending[:, 1 + self._last :]
        times = np.repeat(by_cell.mean(axis=2)[:, None], m, axis=1)  # [rows, positions, pipelines], means until known

        def place(positions: Iterable[int]) -> None:
            for position in positions:
                times[:, position] = by_cell[:, np.arange(pipelines), found[:, position]]

        place((0, *range(m - self._last, m)))
        flat = times.reshape(-1, pipelines)
        ends = self._replay.slot_durations(flat)
        for choice in self._choices:
            for level in choice.levels:
                ends[level.slots] = level.start(ends, flat) + self._replay.level_durations(level, flat)
            first = self._closest(choice, ends, flat, by_cell, left)[:, None]
            taken = (np.arange(left.shape[1]) >= first) & (np.arange(left.shape[1]) < first + len(choice.positions))
            found[:, choice.positions] = left[taken].reshape(pipelines, -1)
            left = left[~taken].reshape(pipelines, -1)
            place(choice.positions)
        return found + m * np.arange(pipelines)[:, None]

    def _closest(
        self,
        choice: PositionChoice,
        ends: Float[np.ndarray, "slots p"],
        times: Float[np.ndarray, "_ p"],
        by_cell: Float[np.ndarray, "r p m"],
        left: Int[np.ndarray, "p k"],
    ) -> Int[np.ndarray, " p"]:
        """Where in those left, the smallest first, the neighbours begin that fill the intervals best."""
        width, pipelines = len(choice.positions), len(left)
        difference = np.zeros((pipelines, left.shape[1] - width + 1))
        for filling in choice.fillings:
            count = len(filling.begin.slots)
            volume = (filling.end.inputs_ready(ends, times) - filling.begin.devices_free(ends)).mean(axis=0)
            volume = volume - times[filling.others].sum(axis=0) / count
            forwards = np.take_along_axis(by_cell[filling.rows].sum(axis=0) / count, left, axis=1)
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
        tracker = _Recursion(self._replay, chosen)
        for number, positions in enumerate(groups):
            fillings = [self._filling(run, positions, tracker) for run in runs if _forwards(run, positions)]
            yield PositionChoice(positions, tuple(fillings), tracker.until(number, fillings))

    def _filling(self, run: Sequence[PipelineOp], positions: range, tracker: "_Recursion") -> Filling:
        *forwards, backward = run
        instances = range(self._replay.replicas[backward.stage_id])
        slots = {part: [self._replay.slot(part, instance) for instance in instances] for part in run}
        others = [slot for part in forwards if part.microbatch not in positions for slot in slots[part]]
        one = next(part.microbatch for part in forwards if part.microbatch in positions)
        rows = [
            slot // self._replay.microbatches for part in forwards if part.microbatch == one for slot in slots[part]
        ]
        return Filling(
            tracker.level(slots[forwards[0]]), tracker.level(slots[backward]), np.array(others, int), np.array(rows)
        )


def _forwards(run: Sequence[PipelineOp], positions: range) -> bool:
    return any(part.microbatch in positions for part in run[:-1])


def _runs(replay: ScheduleReplay) -> list[list[PipelineOp]]:
    """Forwards on the first place that has a backward, each run with the backward behind it."""
    graph = replay.work.stage_graph
    first = next((part.stage_id for part in replay.compute_ops if part.stage_id in replay.work.backward_stages), None)
    if first is None:
        return []
    parts = [part for part in replay.compute_ops if graph.rank_of[part.stage_id] == graph.rank_of[first]]
    runs: list[list[PipelineOp]] = []
    for kind, group in itertools.groupby(parts, key=lambda part: part.kind):
        held = list(group)
        if kind == "forward":
            runs.append(held)
        else:
            runs[-1].append(held[0])
    return runs


class _Recursion:
    """Which ops have to be computed, or computed again, before each choice."""

    def __init__(self, replay: ScheduleReplay, chosen: dict[int, int]) -> None:
        self._m = replay.microbatches
        self._timed = len(replay.compute_rows) * self._m
        self._place = {int(slot): (level, index) for level in replay.levels for index, slot in enumerate(level.slots)}
        self._levels = replay.levels
        self._chosen = chosen
        self._final: set[int] = set()
        self._known_from: dict[int, int] = {}
        for level in replay.levels:
            for index, slot in enumerate(level.slots.tolist()):
                own = chosen.get(slot % self._m, -1) if slot < self._timed else -1
                needs = (self._known_from.get(need, -1) for need in self._needs(level, index))
                self._known_from[slot] = max(own, *needs)

    @staticmethod
    def _needs(level: ReplayLevel, index: int) -> list[int]:
        return [*level.device_predecessors[:, index].tolist(), *level.input_producers[:, index].tolist()]

    def level(self, slots: Sequence[int]) -> ReplayLevel:
        """Slots of one op's instances, apart from their level."""
        level = self._place[slots[0]][0]
        return level.select(np.isin(level.slots, slots))

    def until(self, number: int, fillings: Sequence[Filling]) -> tuple[ReplayLevel, ...]:
        """The ops before a choice's intervals that are not final yet."""
        wanted: set[int] = set()
        front = [
            int(slot)
            for filling in fillings
            for slot in (*filling.begin.device_predecessors.flat, *filling.end.input_producers.flat)
        ]
        while front:
            slot = front.pop()
            if slot in wanted or slot in self._final or slot not in self._place:
                continue
            wanted.add(slot)
            front += self._needs(*self._place[slot])
        self._final |= {slot for slot in wanted if self._known_from[slot] < number}
        chosen = np.array(sorted(wanted), int)
        found = (level.select(np.isin(level.slots, chosen)) for level in self._levels)
        return tuple(level for level in found if len(level.slots))
