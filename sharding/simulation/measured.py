"""A step as it was measured: a timeline from the moments at which ops were launched and had finished."""

import types
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from sharding.plans.device_groups import replicas_of_microbatch
from sharding.plans.stage_graph import PipelineReplicas, StageId
from sharding.schedules.ops import TRANSFERS, PipelineOp, Schedule
from sharding.simulation.bundles import COLLECTIVES, BundledOp
from sharding.simulation.schedule_replay import Seconds, replay_schedule
from sharding.simulation.spans import Span
from sharding.simulation.timeline import Timeline

NO_COPIES: Mapping[str, PipelineReplicas] = types.MappingProxyType({})
"""Of plans whose units have one pipeline replica each."""


def replicas_that_finish(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    op: PipelineOp,
    pipeline_replicas: Mapping[str, PipelineReplicas] = NO_COPIES,
) -> list[list[int]]:
    """The devices that finish an op, by replica: of its stage, of a transfer's target; of the norm all, as one.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        op: The op.
        pipeline_replicas: Of units with several pipeline replicas (`StageGraph.pipeline_replicas`).
    """
    if op.kind == "global_norm":
        return [sorted({device for table in devices.values() for device in table.ravel().tolist()})]
    stage = op.target_id if op.kind in TRANSFERS else op.stage_id
    return replicas_of_microbatch(pipeline_replicas, stage[0], op.microbatch, devices[stage]).tolist()


def replica_count(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    op: PipelineOp,
    pipeline_replicas: Mapping[str, PipelineReplicas] = NO_COPIES,
) -> int:
    """Number of entries of a span of an op; the arguments are those of `replicas_that_finish`."""
    return len(replicas_that_finish(devices, op, pipeline_replicas))


def measured_timeline(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    schedule: Schedule,
    launched: Mapping[PipelineOp, Seconds],
    finished: Mapping[PipelineOp, Seconds],
    rendezvous: bool,
) -> Timeline:
    """The timeline of a step whose ops were launched and had finished at these moments.

    Ends are measured. Starts are derived, because no clock on the host sees them: an op starts when its launch began,
    when its devices had finished the op before it in the schedule, and when its inputs had arrived, whichever is last.
    So an op that waits inside its program, as for other ranks of its unit, counts as busy; `Span.communication` is 0.
    Of a bundle, each op counts for half of the time; beside a gather or a reduction the other counts for all.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        schedule: The ops of all devices.
        launched: When the host began to launch each op, in seconds since it began the step; NaN if it is not known.
        finished: When each op had finished on each replica; NaN if the replica had nothing to do for it.
        rendezvous: Whether hops occupied the devices of both their ends.
    """

    def clock(op: PipelineOp, start: Float[np.ndarray, " i"]) -> Span:
        began = np.fmax(start, launched[op])
        # A thread may notice an end later than another thread that of an op which needed it, by microseconds.
        return Span(op, began, np.fmax(began, finished[op]), np.zeros_like(began))

    def bundle_clock(ops: tuple[BundledOp, BundledOp], start: Float[np.ndarray, " c"]) -> tuple[Span, Span]:
        began, (first, of_first) = start.copy(), ops[0]
        np.fmax.at(began, of_first, launched[first])  # one call launches both, which begins before the first is noted
        ended = began.copy()
        for op, part in ops:
            np.fmax.at(ended, part, finished[op])
        share = 1.0 if ops[0].op.kind in COLLECTIVES else 0.5  # of the second op
        spans = [
            Span(op, began[part], ended[part], np.zeros(len(part)), of_other * (ended - began)[part])
            for (op, part), of_other in zip(ops, (share, 1.0 - share), strict=True)
        ]
        return spans[0], spans[1]

    spans = replay_schedule(devices, schedule, clock, bundle_clock, rendezvous)
    return Timeline(schedule.op_graph, devices, None, spans, rendezvous)
