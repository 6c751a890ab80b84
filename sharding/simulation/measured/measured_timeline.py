"""A step as it was measured: a timeline from the moments at which ops were launched and had finished.

The engine makes such a timeline of every recorded step.
"""

import types
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from sharding.plans.resolved.device_groups import replicas_of_microbatch
from sharding.plans.resolved.stage_graph import PipelineReplicas, StageId
from sharding.schedules.ops import TRANSFERS, PipelineOp, Schedule
from sharding.schedules.recurrence.node_builder import schedule_nodes
from sharding.schedules.recurrence.schedule_nodes import COLLECTIVES, BundleNodes
from sharding.schedules.recurrence.wait_graph import NodeTimes
from sharding.simulation.op_spans.node_spans import BundledSeconds, node_spans
from sharding.simulation.timeline import Timeline

Seconds = Float[np.ndarray, " i"]
"""One entry for each replica of a stage:

of the pipeline replica that takes the op's microbatch, or of all in an op once a step.
"""

NO_PIPELINE_REPLICAS: Mapping[str, PipelineReplicas] = types.MappingProxyType({})
"""The pipeline replicas of plans whose units have one each."""


def replicas_that_finish(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    op: PipelineOp,
    pipeline_replicas: Mapping[str, PipelineReplicas] = NO_PIPELINE_REPLICAS,
) -> list[list[int]]:
    """The devices that finish an op, by replica: of its stage, or of a transfer's target; all as one for the norm.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        op: The op.
        pipeline_replicas: Pipeline replicas of the units that have several (`StageGraph.pipeline_replicas`).
    """
    if op.kind == "global_norm":
        return [sorted({device for table in devices.values() for device in table.ravel().tolist()})]
    stage = op.target_id if op.kind in TRANSFERS else op.stage_id
    return replicas_of_microbatch(pipeline_replicas, stage[0], op.microbatch, devices[stage]).tolist()


def replica_count(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    op: PipelineOp,
    pipeline_replicas: Mapping[str, PipelineReplicas] = NO_PIPELINE_REPLICAS,
) -> int:
    """Returns the number of entries of a span of an op; takes the arguments of `replicas_that_finish`."""
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
    nodes = schedule_nodes(devices, schedule, rendezvous)
    released, ended = np.full((2, nodes.graph.count), np.nan)
    for number in nodes.outside_bundles:
        op, first, count = schedule.ops[number], nodes.first_nodes[number], nodes.replicas[number]
        released[first : first + count], ended[first : first + count] = launched[op], finished[op]
    for bundle in nodes.bundles:
        _release_bundle(schedule, bundle, launched, finished, released, ended)
    # A thread may notice an end microseconds later than another thread notices the end of an op that needed it: such an
    # op takes no time.
    times = nodes.graph.run_measured(released, ended)
    bundled = [_seconds_of_bundle(schedule, bundle, times) for bundle in nodes.bundles]
    spans = node_spans(nodes, times, np.zeros(nodes.graph.count), bundled)
    return Timeline(schedule.op_graph, devices, None, spans, rendezvous)


def _release_bundle(
    schedule: Schedule,
    bundle: BundleNodes,
    launched: Mapping[PipelineOp, Seconds],
    finished: Mapping[PipelineOp, Seconds],
    released: Float[np.ndarray, " n"],
    ended: Float[np.ndarray, " n"],
) -> None:
    """Sets when the nodes of a bundle were released and had ended."""
    ops = schedule.ops[bundle.index : bundle.index + 2]
    # One call launches both, which begins before the first is noted.
    np.fmax.at(released, bundle.first_shares[bundle.parts[0]], launched[ops[0]])
    for op, part in zip(ops, bundle.parts, strict=True):
        np.fmax.at(ended, bundle.second_shares[part], finished[op])


def _seconds_of_bundle(schedule: Schedule, bundle: BundleNodes, times: NodeTimes) -> BundledSeconds:
    """Returns the seconds in the spans of a bundle's ops: each is beside the other for half of the time."""
    seconds = times.ends[bundle.second_shares] - times.starts[bundle.first_shares]
    share = 1.0 if schedule.ops[bundle.index].kind in COLLECTIVES else 0.5  # of the second op
    first, second = bundle.parts
    return BundledSeconds(
        (np.zeros(len(first)), np.zeros(len(second))), (share * seconds[first], (1.0 - share) * seconds[second])
    )
