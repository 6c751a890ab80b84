"""How many microbatches every pipeline rank holds while a schedule runs."""

from collections.abc import Mapping

from sharding.plans.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import OpGraph, PipelineOp, ScheduleError

InFlightLimits = Mapping[PipelineRank, int]
"""How many microbatches each pipeline rank may hold at once; one that is in several of its chunks counts in each."""


def check_limits(op_graph: OpGraph, max_in_flight: InFlightLimits) -> None:
    """Raises ScheduleError, naming the rank, if one has no limit or may not hold a single microbatch."""
    for rank in op_graph.stage_graph.stages_of:
        if rank not in max_in_flight:
            raise ScheduleError(f"the limits of microbatches in flight have none for stage {rank}")
        if max_in_flight[rank] < 1:
            raise ScheduleError(f"stage {rank} may hold {max_in_flight[rank]} microbatches; it must hold at least 1")


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
