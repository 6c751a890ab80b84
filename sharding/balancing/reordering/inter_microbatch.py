"""DistTrain's inter-microbatch reordering, which fills the intervals between a pipeline's backwards (Algorithm 3).

On the first stage of 1F1B the time between two backwards depends on the stages after it. Forwards fill it; what they
leave is a bubble. The intervals come from the recurrence over the whole schedule (`ScheduleReplay`), so that graphs of
stages and virtual stages need no formulas of their own.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.balancing.reordering.replay import PipelineMicrobatchSeconds, ScheduleReplay
from sharding.schedules.ops import COMPUTE_KINDS, TRANSFERS, PipelineOp
from sharding.schedules.recurrence.wait_graph import NodeBlock


@dataclasses.dataclass(frozen=True, eq=False)
class FillableInterval:
    """An interval that forwards of some positions fill: a run of forwards on the first stage, then a backward.

    Attributes:
        begin: Nodes of the interval's first forward, which wait only for the earlier ops on its devices.
        end: Nodes of the backward, which wait only for its hops.
        others: Indices of the seconds of the other positions' forwards in the interval.
        rows: Rows of the pipeline microbatches' seconds for the forwards of one of these positions.
    """

    begin: NodeBlock
    end: NodeBlock
    others: Int[np.ndarray, " k"]
    rows: Int[np.ndarray, " r"]


@dataclasses.dataclass(frozen=True, eq=False)
class PositionChoice:
    """The intervals by which the microbatches of some positions are chosen; only the first interval has several.

    Attributes:
        positions: The positions.
        intervals: The intervals that their forwards fill; several with virtual stages.
        blocks: Nodes of the recurrence that must be computed before, in order.
    """

    positions: range
    intervals: tuple[FillableInterval, ...]
    blocks: tuple[NodeBlock, ...]


class IntervalFillingOrder:
    """Algorithm 3 for a schedule.

    The smallest microbatch comes first, so that all stages start soon, and the next smallest come last, where nothing
    fills the intervals. In between, the first interval is filled by neighbours in size whose forwards together come
    closest to it, and each further interval by the microbatch that comes closest. With virtual stages a microbatch has
    a forward in several intervals, and the sum of the differences counts. Positions that are not decided yet are taken
    for the mean microbatch.

    The paper's loop needs more microbatches than there are. Here it ends when none is left, and where there are fewer
    than 2p - 1, so that less than p - 1 are left for the first interval, it takes the ones that are left. The paper's p
    is the number of microbatches whose forwards come before the first backward of the first stage that has one.
    """

    def __init__(self, replay: ScheduleReplay) -> None:
        self._replay = replay
        runs = _runs(replay)
        m = replay.microbatches
        self._last = min(len({op.microbatch for op in runs[0][:-1]}) - 1, m - 1) if runs else m - 1
        self._choices = tuple(self._make_choices(runs)) if runs else ()

    def orders(self, pipeline_microbatch_seconds: PipelineMicrobatchSeconds) -> Int[np.ndarray, "p m"]:
        """Returns the pipeline microbatches of every pipeline in order.

        Args:
            pipeline_microbatch_seconds: Seconds of the pipeline microbatches of one or several steps, side by side; p
                are the pipelines of all of them.
        """
        m = self._replay.microbatches
        pipelines = pipeline_microbatch_seconds.shape[1] // m
        by_pipeline_microbatch = pipeline_microbatch_seconds.reshape(len(pipeline_microbatch_seconds), pipelines, m)
        ascending = np.argsort(
            by_pipeline_microbatch[: len(self._replay.compute_rows)].sum(axis=0), axis=1, kind="stable"
        )
        order = np.zeros((pipelines, m), int)
        order[:, 0] = ascending[:, 0]
        order[:, m - self._last :] = ascending[:, 1 : 1 + self._last][:, ::-1]
        remaining = ascending[:, 1 + self._last :]
        flat = self._replay.with_fixed_seconds(pipelines)
        times = flat[: len(by_pipeline_microbatch) * m].reshape(len(by_pipeline_microbatch), m, pipelines)
        times[:] = by_pipeline_microbatch.mean(axis=2)[:, None]  # until positions are decided

        def set_seconds(positions: Iterable[int]) -> None:
            for position in positions:
                times[:, position] = by_pipeline_microbatch[:, np.arange(pipelines), order[:, position]]

        set_seconds((0, *range(m - self._last, m)))
        ends = np.zeros((self._replay.nodes.graph.count, pipelines))
        for choice in self._choices:
            for block in choice.blocks:
                ends[block.nodes] = block.latest(ends) + flat[self._replay.slots[block.nodes]]
            first = self._closest(choice, ends, flat, by_pipeline_microbatch, remaining)[:, None]
            index = np.arange(remaining.shape[1])
            taken = (index >= first) & (index < first + len(choice.positions))
            order[:, choice.positions] = remaining[taken].reshape(pipelines, -1)
            remaining = remaining[~taken].reshape(pipelines, -1)
            set_seconds(choice.positions)
        return order + m * np.arange(pipelines)[:, None]

    def _closest(
        self,
        choice: PositionChoice,
        ends: Float[np.ndarray, "nodes p"],
        times: Float[np.ndarray, "_ p"],
        by_pipeline_microbatch: Float[np.ndarray, "r p m"],
        remaining: Int[np.ndarray, "p k"],
    ) -> Int[np.ndarray, " p"]:
        """Index, among the remaining ones in ascending order, of the first neighbour that fills the intervals best."""
        width, pipelines = len(choice.positions), len(remaining)
        difference = np.zeros((pipelines, remaining.shape[1] - width + 1))
        for interval in choice.intervals:
            count = interval.begin.waits.shape[1]
            volume = (interval.end.latest(ends) - interval.begin.latest(ends)).mean(axis=0)
            volume = volume - times[interval.others].sum(axis=0) / count
            forwards = np.take_along_axis(by_pipeline_microbatch[interval.rows].sum(axis=0) / count, remaining, axis=1)
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
        recurrence = _Recurrence(self._replay, chosen)
        for number, positions in enumerate(groups):
            intervals = [self._interval(run, positions, recurrence) for run in runs if _has_forward_of(run, positions)]
            yield PositionChoice(positions, tuple(intervals), recurrence.until(number, intervals))

    def _interval(self, run: Sequence[PipelineOp], positions: range, recurrence: "_Recurrence") -> FillableInterval:
        *forwards, backward = run
        slots = {op: self._replay.slots[recurrence.nodes_of(op)].tolist() for op in forwards}
        others = [slot for op in forwards if op.microbatch not in positions for slot in slots[op]]
        microbatch = next(op.microbatch for op in forwards if op.microbatch in positions)
        rows = [
            slot // self._replay.microbatches for op in forwards if op.microbatch == microbatch for slot in slots[op]
        ]
        return FillableInterval(
            recurrence.after_devices(forwards[0]),
            recurrence.after_inputs(backward),
            np.array(others, int),
            np.array(rows),
        )


def _has_forward_of(run: Sequence[PipelineOp], positions: range) -> bool:
    return any(op.microbatch in positions for op in run[:-1])


def _runs(replay: ScheduleReplay) -> list[list[PipelineOp]]:
    """Runs of forwards on the first pipeline rank that has a backward, each with the backward after it."""
    op_graph = replay.op_graph
    graph = op_graph.stage_graph
    computes = [op for op in replay.nodes.schedule.ops if op.kind in COMPUTE_KINDS]
    first = next((op.stage_id for op in computes if op.stage_id in op_graph.backward_stages), None)
    if first is None:
        return []
    rank_ops = [
        op for op in computes if graph.rank_of_microbatch(op.stage_id, op.microbatch) == graph.ranks_of[first][0]
    ]
    ops = [op for op in rank_ops if op.kind != "wgrad"]
    runs: list[list[PipelineOp]] = []
    for kind, group in itertools.groupby(ops, key=lambda op: op.kind):
        same_kind = list(group)
        if kind == "forward":
            runs.append(same_kind)
        else:
            runs[-1].append(same_kind[0])
    return runs


class _Recurrence:
    """Which nodes have to be computed, or computed again, before the microbatch of each position is chosen."""

    def __init__(self, replay: ScheduleReplay, chosen: dict[int, int]) -> None:
        nodes = replay.nodes
        self._graph, self._nodes = nodes.graph, nodes
        self._numbers = {op: number for number, op in enumerate(nodes.schedule.ops)}
        self._is_hop = np.zeros(self._graph.count, bool)
        self._known_from = np.full(self._graph.count, -1)  # the first choice after which a node's end is final
        for family in nodes.families:
            self._is_hop[family.nodes] = family.kind in TRANSFERS
            choices = [chosen.get(microbatch, -1) for microbatch in family.microbatches.tolist()]
            self._known_from[family.nodes] = np.array(choices)[:, None]
        self._needs: list[list[int]] = [[]]
        for block in self._graph.blocks:
            self._known_from[block.nodes] = np.maximum(self._known_from[block.nodes], block.latest(self._known_from))
            self._needs += block.waits.T.tolist()
        self._final: set[int] = {0}

    def nodes_of(self, op: PipelineOp) -> Int[np.ndarray, " i"]:
        """The nodes of an op, by replica."""
        number = self._numbers[op]
        return self._nodes.first_nodes[number] + np.arange(self._nodes.replicas[number])

    def after_devices(self, op: PipelineOp) -> NodeBlock:
        """Returns the nodes of an op, which wait for the earlier ops on its devices and not for its hops."""
        (block,) = self._graph.select(self.nodes_of(op))
        return NodeBlock(block.nodes, np.where(self._is_hop[block.waits], 0, block.waits))

    def after_inputs(self, op: PipelineOp) -> NodeBlock:
        """Returns the nodes of an op, which wait only for its hops."""
        (block,) = self._graph.select(self.nodes_of(op))
        return NodeBlock(block.nodes, np.where(self._is_hop[block.waits], block.waits, 0))

    def until(self, number: int, intervals: Sequence[FillableInterval]) -> tuple[NodeBlock, ...]:
        """The nodes before the intervals of a choice that are not final yet."""
        needed: set[int] = set()
        pending = [node for interval in intervals for node in (*interval.begin.waits.flat, *interval.end.waits.flat)]
        while pending:
            node = int(pending.pop())
            if node not in needed and node not in self._final:
                needed.add(node)
                pending += self._needs[node]
        chosen = np.array(sorted(needed), int)
        self._final.update(chosen[self._known_from[chosen] < number].tolist())
        return self._graph.select(chosen)
