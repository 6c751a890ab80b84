"""How many microbatches every pipeline rank holds while a schedule runs.

Schedules keep to limits by these counts, and checks enforce them.
"""

import collections
from collections.abc import Mapping

from sharding.plans.resolved.stage_graph import PipelineRank, StageGraph, StageId
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, PipelineOp, ScheduleError

InFlightLimits = Mapping[PipelineRank, int]
"""How many microbatches each pipeline rank may hold at once; one that is in several of its chunks counts in each."""


def check_limits(op_graph: OpGraph, max_in_flight: InFlightLimits) -> None:
    """Raises ScheduleError, naming the rank, if one has no limit or may not hold a single microbatch."""
    for rank in op_graph.stage_graph.stages_of:
        if rank not in max_in_flight:
            raise ScheduleError(f"the limits of microbatches in flight have none for stage {rank}")
        if max_in_flight[rank] < 1:
            raise ScheduleError(f"stage {rank} may hold {max_in_flight[rank]} microbatches; it must hold at least 1")


def limit_of_pipeline_replicas(graph: StageGraph, stage: StageId, limit: int) -> dict[PipelineRank, int]:
    """Microbatches that each pipeline replica of a stage may hold, where all hold `limit` consecutive ones together."""
    ranks = graph.ranks_of[stage]
    if len(ranks) == 1:
        return {ranks[0]: limit}
    taken_by = graph.pipeline_replicas[stage[0]].of_microbatch
    windows = [taken_by[first : first + limit] for first in range(max(1, len(taken_by) - limit + 1))]
    return {
        rank: max(window.count(pipeline_replica) for window in windows) for pipeline_replica, rank in enumerate(ranks)
    }


class InFlightMicrobatches:
    """Counts the microbatches that every pipeline rank holds; one that is in several chunks of a rank counts in each.

    A stage that runs a backward holds the residuals of a microbatch from its forward to its backward, or to its wgrad
    where that is an op of its own. A stage that runs none holds its output until the forward of every stage it feeds
    has run.
    """

    def __init__(self, op_graph: OpGraph) -> None:
        self._op_graph, self._graph = op_graph, op_graph.stage_graph
        self._by_rank = dict.fromkeys(self._graph.stages_of, 0)
        # Of stages without backward, by microbatch: how many targets have their forward to come.
        self._untaken: dict[tuple[StageId, int], int] = {}
        self._finished: dict[StageId, set[int]] = collections.defaultdict(set)
        self._first_unfinished = dict.fromkeys(self._graph.stages, 0)

    def record(self, op: PipelineOp) -> None:
        """Counts an op that has run; kinds other than `COMPUTE_KINDS` change nothing."""
        stage, number = op.stage_id, op.microbatch
        has_backward = stage in self._op_graph.backward_stages
        if op.kind == "forward":
            targets = self._graph.targets[stage]
            if has_backward or targets:
                self._by_rank[self._graph.rank_of_microbatch(stage, number)] += 1
            if not has_backward:
                self._untaken[stage, number] = len(targets)
                self._finish(stage, number)
            for source in self._graph.sources[stage]:
                self._take(source, number)
        elif op.kind in COMPUTE_KINDS and op.kind == self._op_graph.last_pass(stage):
            self._by_rank[self._graph.rank_of_microbatch(stage, number)] -= 1
            self._finish(stage, number)

    def _take(self, source: StageId, number: int) -> None:
        """Records that a forward has taken an input, which a source without backward then need not hold."""
        if source in self._op_graph.backward_stages:
            return
        self._untaken[source, number] -= 1
        if not self._untaken[source, number]:
            self._by_rank[self._graph.rank_of_microbatch(source, number)] -= 1

    def _finish(self, stage: StageId, number: int) -> None:
        finished = self._finished[stage]
        finished.add(number)
        while self._first_unfinished[stage] in finished:
            finished.remove(self._first_unfinished[stage])
            self._first_unfinished[stage] += 1

    def __getitem__(self, rank: PipelineRank) -> int:
        return self._by_rank[rank]

    def is_oldest(self, microbatch: int) -> bool:
        """Whether every stage has finished all microbatches before this one."""
        return min(self._first_unfinished.values()) >= microbatch
