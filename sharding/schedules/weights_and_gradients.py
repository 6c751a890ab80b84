"""Where an order has the gathers of weights and the reductions of gradients, which each stage runs once a step."""

import collections
from collections.abc import Mapping

from sharding.plans.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import OpGraph, PipelineOp


class WeightsAndGradients:
    """Places gathers before the first input of any stage on their devices, and reductions after the last pass there.

    Devices that wait in the warm-up gather meanwhile, and those that are done reduce while others still work. Nothing
    else hides these collectives: a device runs one program after another. Between passes there are none of them: they
    join all replicas of a stage, and where devices hold several stages, others would wait too.

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
        self._beside: dict[StageId, list[StageId]] = {}
        self._ranks_beside: dict[StageId, list[PipelineRank]] = {}
        for stage in graph.stages:
            beside = self._beside[stage] = [other for other in graph.stages if device_bits[other] & device_bits[stage]]
            self._ranks_beside[stage] = list(dict.fromkeys(graph.rank_of[other] for other in beside))
        self._left: collections.Counter[PipelineRank] = collections.Counter()
        for stage, ranks in self._ranks_beside.items():
            passes = op_graph.microbatches * (1 + (stage in op_graph.backward_stages))
            self._left.update(dict.fromkeys(ranks, passes))

    def before(self, op: PipelineOp) -> list[PipelineOp]:
        """The ops that make the weights of all stages on the devices of a forward, or of the target of a hop."""
        stages = self._beside[op.target_id if op.kind == "hop" else op.stage_id]
        shares = [share for stage in stages for share in self._shares[stage]]
        needed = dict.fromkeys([*stages, *(share.stage_id for share in shares)])
        taken = [each for each in (*(PipelineOp("gather", *each) for each in needed), *shares) if each in self._waiting]
        for each in taken:
            del self._waiting[each]
        return taken

    def after(self, op: PipelineOp) -> list[PipelineOp]:
        """The reductions that follow a forward or backward: those of ranks whose devices compute no more."""
        reductions = []
        for rank in self._ranks_beside[op.stage_id]:
            self._left[rank] -= 1
            if not self._left[rank]:
                reductions += self._reductions[rank]
        return reductions

    def rest(self) -> list[PipelineOp]:
        """The ops of the pass that follow all these."""
        return [*self._waiting, *(op for op in self._op_graph.epilogue if op.kind != "reduce")]
