"""Bundles by hand: what one op computes while the other waits, who waits for whom, and how idle time is counted."""

import numpy as np
import pytest

from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule
from sharding.simulation.timeline import Timeline
from tests.sharding.steps import SimulatedStep, stage_costs, step_costs

ENCODER, BACKBONE = ("encoder", 0), ("backbone", 0)


def colocated(
    encoder: tuple[list[float], list[float]], backbone: tuple[list[float], list[float]], **backbone_fields: float
) -> Timeline:
    """The encoder's forward in one program with the backbone's, on four devices; seconds and waits by replica."""
    devices = {ENCODER: np.arange(4).reshape(len(encoder[0]), -1), BACKBONE: np.arange(4).reshape(len(backbone[0]), -1)}
    graph = StageGraph(dict.fromkeys(devices, frozenset(range(4))), ())
    op_graph = OpGraph(stage_graph=graph, microbatches=1, with_update=False)
    stages = {
        stage: stage_costs([seconds], forward_communication=np.array([waits]), **fields)
        for stage, (seconds, waits), fields in ((ENCODER, encoder, {}), (BACKBONE, backbone, backbone_fields))
    }
    gathers = [PipelineOp("gather", *stage) for stage in (ENCODER, BACKBONE)]
    forwards = [PipelineOp("forward", *stage, 0) for stage in (BACKBONE, ENCODER)]
    if backbone_fields:
        ops, together = (*gathers, forwards[1], forwards[0]), forwards[1]  # beside the gather of the backbone
    else:
        ops, together = (*gathers, *forwards), forwards[1]
    schedule = Schedule(op_graph, ops, frozenset([together]))
    return SimulatedStep(devices, schedule, step_costs(op_graph, stages)).run()


def idle(timeline: Timeline) -> dict[str, float]:
    return {cause: seconds for cause, seconds in timeline.idle.items() if seconds}


@pytest.mark.parametrize(
    ("encoder", "backbone", "seconds", "exposed"),
    [
        ((2.0, 0.0), (5.0, 2.0), 5.0, 0.0),  # just fits into the waits of the backbone
        ((1.0, 0.0), (5.0, 2.0), 5.0, 1.0),  # leaves some of them
        ((3.0, 0.0), (5.0, 2.0), 6.0, 0.0),  # is longer than they are
        ((2.0, 1.0), (5.0, 2.0), 5.0, 1.0),  # and its own waits are hidden too
        ((4.0, 4.0), (5.0, 5.0), 9.0, 9.0),  # nothing computes
    ],
)
def test_one_op_computes_while_the_other_waits(encoder, backbone, seconds, exposed):
    timeline = colocated(*(([total], [waits]) for total, waits in (encoder, backbone)))
    assert timeline.step == seconds
    assert idle(timeline) == ({"tensor parallel": exposed} if exposed else {})
    assert timeline.busy == encoder[0] - encoder[1] + backbone[0] - backbone[1]
    assert timeline.busy_by_unit == {"encoder": encoder[0] - encoder[1], "backbone": backbone[0] - backbone[1]}
    spans = [span for span in timeline.spans if span.op.kind == "forward"]
    assert {(float(span.start[0]), float(span.end[0])) for span in spans} == {(0.0, seconds)}


def test_an_op_beside_a_gather_hides_it_as_far_as_it_computes():
    timeline = colocated(([3.0], [1.0]), ([4.0], [0.0]), gather=5.0)
    assert timeline.step == 5.0 + 1.0 + 4.0  # the gather, the collectives of the encoder, the forward of the backbone
    assert idle(timeline) == {"gather": 3.0, "tensor parallel": 1.0}
    assert timeline.busy == 2.0 + 4.0


def test_replicas_that_share_devices_wait_for_the_slowest():
    """Two replicas of the encoder in each of the backbone's; the second of the fourth is slow."""
    timeline = colocated(([1.0, 1.0, 1.0, 3.0], [0.0] * 4), ([4.0, 4.0], [1.0, 1.0]))
    ends = {span.op.unit: span.end.tolist() for span in timeline.spans if span.op.kind == "forward"}
    assert ends == {"encoder": [4.0, 4.0, 6.0, 6.0], "backbone": [4.0, 6.0]}
    assert idle(timeline) == {"tensor parallel": 2.0 / 4, "cool-down": 2 * 2.0 / 4}


def test_a_bundle_waits_for_the_inputs_of_both_and_holds_back_what_needs_either():
    """A feeding stage on a device of its own; its input comes late for the encoder, which the backbone waits for."""
    feeding, after = ("feeding", 0), ("after", 0)
    devices = {feeding: np.array([[1]]), ENCODER: np.array([[0]]), BACKBONE: np.array([[0]]), after: np.array([[2]])}
    edges = ((feeding, ENCODER), (BACKBONE, after))
    graph = StageGraph({stage: frozenset(held.ravel().tolist()) for stage, held in devices.items()}, edges)
    op_graph = OpGraph(stage_graph=graph, microbatches=1, with_update=False)
    seconds = {feeding: 2.0, ENCODER: 1.0, BACKBONE: 3.0, after: 1.0}
    costs = step_costs(op_graph, {stage: stage_costs([[value]]) for stage, value in seconds.items()}, 0.5)
    gathers = [PipelineOp("gather", *stage) for stage in graph.stages]
    ops = [PipelineOp("forward", *feeding, 0), PipelineOp("hop", *feeding, 0, *ENCODER)]
    ops += [PipelineOp("forward", *stage, 0) for stage in (BACKBONE, ENCODER)]
    ops += [PipelineOp("hop", *BACKBONE, 0, *after), PipelineOp("forward", *after, 0)]
    timeline = SimulatedStep(devices, Schedule(op_graph, (*gathers, *ops), frozenset([ops[3]])), costs).run()
    assert timeline.step == 2.5 + 4.0 + 0.5 + 1.0
    assert timeline.lane_idle(timeline.lanes_of_units["backbone"][0])["warm-up"] == 2.5
