"""Mean seconds of ops in a measured step, and seconds of its forwards and backwards in another order.

`rescheduling.py` compares orders of a step by these seconds.
"""

import collections
import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.schedules.ops import COMPUTE_KINDS, GLOBAL_NORM, OpGraph, OpKind, PipelineOp, Schedule
from sharding.schedules.recurrence.node_builder import schedule_nodes
from sharding.simulation.measured.measured_timeline import Seconds
from sharding.simulation.op_spans.node_spans import run_schedule
from sharding.simulation.op_spans.op_seconds import OpSeconds
from sharding.simulation.op_spans.spans import Span
from sharding.simulation.timeline import Timeline

_OpOfPipelineReplicas = tuple[PipelineOp, int, int]
"""An op of all microbatches that one pipeline replica of its unit takes, and one of the unit that it sends to."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeanSeconds:
    """Means of a timeline's ops over the microbatches of the step.

    A microbatch that had nothing to do in a unit counts, with no seconds.

    Attributes:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        rendezvous: Whether hops occupied the devices of both their ends.
        by_op: Seconds of an op on each replica.
    """

    devices: Mapping[StageId, Int[np.ndarray, "_ _"]]
    rendezvous: bool
    by_op: Mapping[_OpOfPipelineReplicas, Seconds]

    def of_stage(self, graph: StageGraph, kind: OpKind, stage: StageId) -> float:
        """Seconds of a stage's forward or backward on its slowest replica; 0 for a stage without."""
        op = PipelineOp(kind, *stage)
        pipeline_replicas = (
            (op, pipeline_replica, 0) for pipeline_replica in range(graph.pipeline_replica_count(stage[0]))
        )
        return max((float(self.by_op[key].max()) for key in pipeline_replicas if key in self.by_op), default=0.0)

    def pass_of(self, schedule: Schedule) -> float:
        """Seconds from the first forward to the last backward or wgrad if all ops of a schedule take their means.

        Args:
            schedule: An order of the ops that were measured.
        """
        nodes = schedule_nodes(self.devices, schedule, self.rendezvous)
        return _pass_of_spans(run_schedule(nodes, functools.partial(self._of_ops, schedule.op_graph)))

    def _of_ops(self, op_graph: OpGraph, kind: OpKind, stage: StageId, target: StageId) -> OpSeconds:
        """The mean seconds of an op on every microbatch; a single entry for an op once a step.

        What the ops of a bundle hide of each other is not measured apart: their shares of its time are added.
        """
        op, graph = PipelineOp(kind, *stage, GLOBAL_NORM.microbatch, *target), op_graph.stage_graph
        if kind in (*COMPUTE_KINDS, "hop", "gradient_hop"):
            ops = (op._replace(microbatch=number) for number in range(op_graph.microbatches))
            seconds = np.stack([self.by_op[_of_pipeline_replicas(graph, microbatch_op)] for microbatch_op in ops])
        else:
            seconds = self.by_op[op, 0, 0][None]
        return seconds, np.zeros_like(seconds)


def mean_seconds(timeline: Timeline) -> MeanSeconds:
    """Returns the mean seconds of a timeline's ops."""
    graph = timeline.op_graph.stage_graph
    seconds: dict[_OpOfPipelineReplicas, list[Seconds]] = collections.defaultdict(list)
    for span in timeline.spans:
        seconds[_of_pipeline_replicas(graph, span.op)].append(span.own_seconds)
    means = {key: np.mean(microbatch_seconds, axis=0) for key, microbatch_seconds in seconds.items()}
    return MeanSeconds(timeline.devices, timeline.rendezvous, means)


def pass_of_timeline(timeline: Timeline) -> float:
    """Seconds from the first forward of a step to the end of its last backward or wgrad."""
    return _pass_of_spans(timeline.spans)


def _pass_of_spans(spans: tuple[Span, ...]) -> float:
    passes = [span for span in spans if span.op.kind in COMPUTE_KINDS]
    return max(float(span.end.max()) for span in passes) - min(float(span.start.min()) for span in passes)


def _of_pipeline_replicas(graph: StageGraph, op: PipelineOp) -> _OpOfPipelineReplicas:
    """An op without its microbatch, and the pipeline replicas at its ends that take it; 0 for a unit's only one."""
    if op.microbatch == GLOBAL_NORM.microbatch:
        return op, 0, 0
    unnumbered_op = op._replace(microbatch=GLOBAL_NORM.microbatch)
    return (
        unnumbered_op,
        graph.pipeline_replica_of_microbatch(op.unit, op.microbatch),
        graph.pipeline_replica_of_microbatch(op.target_unit, op.microbatch),
    )
