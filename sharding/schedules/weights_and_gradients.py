"""Where an order has the gathers of weights and the reductions of gradients, which each stage runs once a step.

List scheduling and `colocated` place these ops by `WeightsAndGradients`.
"""

import collections
from collections.abc import Mapping

from sharding.plans.resolved.stage_graph import PipelineRank, StageId
from sharding.schedules.ops import OpGraph, PipelineOp


class WeightsAndGradients:
    """Places gathers before the first input of any stage on their devices, and reductions after the last pass there.

    Devices that wait in the warm-up gather meanwhile, and devices that are done reduce while others still work. Nothing
    else hides these collectives: a device runs one program after another. Between passes there are none of them: they
    join all replicas of a stage, and where devices hold several stages, others would wait too.

    Args:
        op_graph: The ops of a pass.
        device_bits: The devices of every pipeline rank, as the bits of an integer.
    """

    def __init__(self, op_graph: OpGraph, device_bits: Mapping[PipelineRank, int]) -> None:
        self._op_graph, graph = op_graph, op_graph.stage_graph
        self._rank, self._ranks_of = graph.rank_of_microbatch, graph.ranks_of
        self._waiting = dict.fromkeys(op_graph.prologue)
        self._gathered: set[PipelineRank] = set()  # ranks on whose devices all weights are
        self._shares: dict[StageId, list[PipelineOp]] = collections.defaultdict(list)
        for op in op_graph.prologue:
            if op.kind == "send_tied_weight":
                self._shares[op.target_id].append(op)
        trained = op_graph.trained_stages if op_graph.with_update else frozenset()
        self._unreduced = [stage for stage in reversed(graph.stages) if stage in trained]
        self._ranks_beside: dict[PipelineRank, list[PipelineRank]] = {
            rank: [other for other, bits in device_bits.items() if bits & rank_bits]
            for rank, rank_bits in device_bits.items()
        }
        self._beside: dict[PipelineRank, list[StageId]] = {}
        for rank, ranks in self._ranks_beside.items():
            on_devices = {stage for other in ranks for stage in graph.stages_of[other]}
            self._beside[rank] = [stage for stage in graph.stages if stage in on_devices]
        self._left: collections.Counter[PipelineRank] = collections.Counter()
        for stage in graph.stages:
            passes = len(op_graph.passes_of(stage))
            for number in range(op_graph.microbatches):
                self._left.update(dict.fromkeys(self._ranks_beside[graph.rank_of_microbatch(stage, number)], passes))

    def before(self, op: PipelineOp) -> list[PipelineOp]:
        """The ops that make the weights of all stages on the devices of a forward, or of the target of a hop."""
        rank = self._rank(op.target_id if op.kind == "hop" else op.stage_id, op.microbatch)
        if rank in self._gathered:
            return []
        self._gathered.add(rank)
        stages = self._beside[rank]
        shares = [share for stage in stages for share in self._shares[stage]]
        needed = dict.fromkeys([*stages, *(share.stage_id for share in shares)])
        taken = [
            weight_op
            for weight_op in (*(PipelineOp("gather", *stage) for stage in needed), *shares)
            if weight_op in self._waiting
        ]
        for taken_op in taken:
            del self._waiting[taken_op]
        return taken

    def after(self, op: PipelineOp) -> list[PipelineOp]:
        """The reductions that follow an op of `COMPUTE_KINDS`: of the stages on whose devices no such op is left."""
        ended = False
        for rank in self._ranks_beside[self._rank(op.stage_id, op.microbatch)]:
            self._left[rank] -= 1
            ended = ended or not self._left[rank]
        if not ended:
            return []
        ready = [stage for stage in self._unreduced if not any(self._left[rank] for rank in self._ranks_of[stage])]
        self._unreduced = [stage for stage in self._unreduced if stage not in ready]
        return [PipelineOp("reduce", *stage) for stage in ready]

    def reduce_now(self, stage: StageId) -> list[PipelineOp]:
        """The reduction of a stage whose backwards have all run, before other passes on its devices; once a stage."""
        if stage not in self._unreduced:
            return []
        self._unreduced.remove(stage)
        return [PipelineOp("reduce", *stage)]

    def rest(self) -> list[PipelineOp]:
        """The ops of the pass that follow all reductions."""
        return [*self._waiting, *(op for op in self._op_graph.epilogue if op.kind != "reduce")]
