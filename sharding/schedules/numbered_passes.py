"""The forwards, backwards and wgrads of a step by numbers, so that inner loops look them up in lists."""

from collections.abc import Iterable, Sequence

from sharding.plans.resolved.stage_graph import PipelineRank, StageGraph, StageId
from sharding.schedules.ops import OpGraph, OpKind, PipelineOp


class NumberedPasses:
    """The ops of `COMPUTE_KINDS` of a step.

    A queue is of the ops of one kind of one stage in one pipeline replica of its unit.

    Attributes:
        op_graph: The step.
        ops: The ops; the ops of a stage and kind follow each other by microbatch.
        numbers: The number of each op.
        stages: By op, the number of its stage in the graph.
        ranks: By op, the number of its pipeline rank.
        queues: By op, the number of its queue.
        rank_ids: By number, the pipeline ranks.
        queue_ranks: By queue, the number of its pipeline rank.
        rank_bits: By pipeline rank, its devices as the bits of an integer (`rank_device_bits`).
        dependents: By op, the ops that wait for it.
        awaited_counts: By op, how many ops it waits for.
    """

    def __init__(self, op_graph: OpGraph) -> None:
        self.op_graph, graph = op_graph, op_graph.stage_graph
        self.ops: list[PipelineOp] = []
        self.stages: list[int] = []
        self.ranks: list[int] = []
        self.queues: list[int] = []
        self.queue_ranks: list[int] = []
        self.rank_ids: tuple[PipelineRank, ...] = tuple(graph.stages_of)
        bits = rank_device_bits(graph)
        self.rank_bits = [bits[rank] for rank in self.rank_ids]
        self._rank_numbers = {rank: number for number, rank in enumerate(self.rank_ids)}
        self._first: dict[tuple[OpKind, StageId], int] = {}
        for number, stage in enumerate(graph.stages):
            for kind in op_graph.passes_of(stage):
                self._add(kind, number, stage)
        self.numbers = {op: number for number, op in enumerate(self.ops)}
        self.dependents: list[Sequence[int]] = [()] * len(self.ops)
        self.awaited_counts = [0] * len(self.ops)
        for kind, stage in self._first:
            self._connect(kind, stage)

    def _add(self, kind: OpKind, number: int, stage: StageId) -> None:
        """Numbers the ops of a stage and kind."""
        graph, microbatches = self.op_graph.stage_graph, range(self.op_graph.microbatches)
        self._first[kind, stage] = len(self.ops)
        self.ops += [PipelineOp(kind, *stage, microbatch) for microbatch in microbatches]
        self.stages += [number] * len(microbatches)
        ranks = [self._rank_numbers[rank] for rank in graph.ranks_of[stage]]
        taken_by = [graph.pipeline_replica_of_microbatch(stage[0], microbatch) for microbatch in microbatches]
        self.ranks += [ranks[pipeline_replica] for pipeline_replica in taken_by]
        self.queues += [len(self.queue_ranks) + pipeline_replica for pipeline_replica in taken_by]
        self.queue_ranks += ranks

    def _connect(self, kind: OpKind, stage: StageId) -> None:
        """Notes which ops wait for the ops of a stage and kind, for all of them where one program runs these."""
        graph = self.op_graph.stage_graph
        keys: list[tuple[OpKind, StageId]] = []
        if kind == "forward":
            keys = [*(("forward", target) for target in graph.targets[stage]), ("backward", stage)]
        elif kind == "backward":
            keys = [("wgrad", stage), *(("backward", source) for source in graph.sources[stage])]
        waiting = [self._first[key] for key in keys if key in self._first]
        count, begin = self.op_graph.microbatches, self._first[kind, stage]
        if stage in graph.compiled:
            dependents = [number for waiting_first in waiting for number in range(waiting_first, waiting_first + count)]
            self.dependents[begin : begin + count] = [dependents] * count
        else:
            self.dependents[begin : begin + count] = [
                [waiting_first + microbatch for waiting_first in waiting] for microbatch in range(count)
            ]
        for dependents in self.dependents[begin : begin + count]:
            for number in dependents:
                self.awaited_counts[number] += 1

    def numbers_of(self, ops: Iterable[PipelineOp]) -> list[int]:
        """The numbers of some ops."""
        return [self.numbers[op] for op in ops]

    def started(self, events: Iterable[int]) -> list[PipelineOp]:
        """The ops in the order in which they start, of events as `list_events` returns them."""
        return [self.ops[event] for event in events if event >= 0]


def rank_device_bits(graph: StageGraph) -> dict[PipelineRank, int]:
    """The devices of every pipeline rank as the bits of an integer, one for each class of devices in the same ranks."""
    return {
        rank: sum(1 << bit for bit, members in enumerate(graph.device_classes) if members[0] in devices)
        for rank, devices in graph.rank_devices.items()
    }
