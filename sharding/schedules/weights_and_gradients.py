"""Where an order has the gathers of weights and the reductions of gradients, which each stage runs once a step."""

import collections
import itertools
from collections.abc import Mapping

from sharding.plans.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import OpGraph, PipelineOp


class WeightsAndGradients:
    """Places gathers and shares before a stage's first input, and reductions after the last backward of its devices.

    Devices that wait in the warm-up gather meanwhile, and those that are done reduce while others still work. Nothing
    else hides these collectives: a device runs one program after another. Devices with chunks, or stages of several
    units, do not reduce one of them between backwards, because all ranks before them would wait too.

    Args:
        op_graph: The ops of a pass.
        device_bits: The devices of every stage, as the bits of an integer.
    """

    def __init__(self, op_graph: OpGraph, device_bits: Mapping[StageId, int]) -> None:
        self._op_graph, graph = op_graph, op_graph.stage_graph
        self._waiting = dict.fromkeys(op_graph.prologue)
        self._shares: dict[StageId, list[PipelineOp]] = collections.defaultdict(list)
        for op in op_graph.prologue:
            if op.kind == "share":
                self._shares[op.target_id].append(op)
        trained = op_graph.trained_stages if op_graph.with_update else frozenset()
        self._reductions: dict[PipelineRank, list[PipelineOp]] = collections.defaultdict(list)
        for stage in reversed(graph.stages):
            if stage in trained:
                self._reductions[graph.rank_of[stage]].append(PipelineOp("reduce", *stage))
        self._ranks_beside: dict[StageId, list[PipelineRank]] = {
            stage: [rank for rank in self._reductions if device_bits[graph.stages_of[rank][0]] & device_bits[stage]]
            for stage in op_graph.backward_stages
        }
        self._backwards = collections.Counter(itertools.chain.from_iterable(self._ranks_beside.values()))
        for rank in self._backwards:
            self._backwards[rank] *= op_graph.microbatches

    def before(self, op: PipelineOp) -> list[PipelineOp]:
        """The ops that make the weights of the stage that a forward runs or a hop feeds, unless they came before."""
        stage = op.target_id if op.kind == "hop" else op.stage_id
        shares = self._shares[stage]
        needed = dict.fromkeys([stage, *(share.stage_id for share in shares)])
        taken = [each for each in (*(PipelineOp("gather", *each) for each in needed), *shares) if each in self._waiting]
        for each in taken:
            del self._waiting[each]
        return taken

    def after(self, op: PipelineOp) -> list[PipelineOp]:
        """The reductions that follow an op: those of all stages of a rank whose devices run no backward any more."""
        if op.kind != "backward":
            return []
        reductions = []
        for rank in self._ranks_beside[op.stage_id]:
            self._backwards[rank] -= 1
            if not self._backwards[rank]:
                reductions += self._reductions[rank]
        return reductions

    def rest(self) -> list[PipelineOp]:
        """The ops of the pass that follow all these."""
        return [*self._waiting, *(op for op in self._op_graph.epilogue if op.kind != "reduce")]
