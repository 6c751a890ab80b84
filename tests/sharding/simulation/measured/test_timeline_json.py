"""Timelines as JSON: read back they draw the same; without costs there is no MFU; damage is an error of a line."""

import json

import numpy as np
import pytest
from hypothesis import given, settings

from configs.common.errors import UserError
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.one_f_one_b import gpipe
from sharding.schedules.ops import OpGraph, PipelineOp
from sharding.simulation.measured.timeline_json import read_timeline, timeline_document
from sharding.simulation.pages.html_page import html_page
from sharding.simulation.pages.perfetto import perfetto_trace
from tests.sharding.html.documents import parsed_page, words
from tests.sharding.steps import SimulatedStep, build_step, stage_costs, step_costs, step_recipes, uneven_timeline


@pytest.fixture(scope="module")
def document():
    return json.loads(json.dumps(timeline_document(uneven_timeline(rendezvous=True))))


def test_a_timeline_is_read_back(document):
    written, read = uneven_timeline(rendezvous=True), read_timeline(document)
    assert read.op_graph == written.op_graph and read.rendezvous
    for before, after in zip(written.spans, read.spans, strict=True):
        assert before.op == after.op
        np.testing.assert_allclose([after.start, after.end], [before.start, before.end], atol=1e-9)
    assert read.idle == pytest.approx(written.idle) and read.busy_by_unit == pytest.approx(written.busy_by_unit)


def test_it_is_drawn_without_what_only_a_simulation_knows(document):
    timeline = read_timeline(document)
    told = words(parsed_page(html_page(timeline, "measured")))
    assert "MFU" not in told and "memory" not in told and "busy" in told
    figures = json.loads(perfetto_trace(timeline))["otherData"]
    assert figures["step_seconds"] == timeline.step and "mfu" not in json.dumps(figures)
    with pytest.raises(UserError, match="a measured timeline knows no FLOPs"):
        _ = timeline.mfu


@settings(max_examples=15, deadline=None)
@given(step_recipes())
def test_any_timeline_is_read_back(recipe):
    written = build_step(recipe).run()
    read = read_timeline(json.loads(json.dumps(timeline_document(written))))
    assert [span.beside is None for span in read.spans] == [span.beside is None for span in written.spans]
    assert read.op_graph == written.op_graph and read.lanes == written.lanes
    assert read.idle == pytest.approx(written.idle) and read.busy_by_unit == pytest.approx(written.busy_by_unit)


def test_a_compiled_unit_is_read_back():
    """Its backwards, and those of the encoder, wait for the forwards of all microbatches."""
    uneven = uneven_timeline()
    encoder, backbone, *_ = uneven.op_graph.stage_graph.stages
    devices = {stage: uneven.devices[stage] for stage in (encoder, backbone)}
    graph = StageGraph(
        {stage: frozenset(held.ravel().tolist()) for stage, held in devices.items()},
        ((encoder, backbone),),
        compiled=frozenset([backbone]),
    )
    op_graph = OpGraph(stage_graph=graph, microbatches=2, backward_stages=frozenset([encoder, backbone]))
    costs = step_costs(op_graph, {stage: stage_costs(np.ones((2, len(devices[stage])))) for stage in devices})
    written = SimulatedStep(devices, gpipe(op_graph), costs).run()
    read = read_timeline(json.loads(json.dumps(timeline_document(written))))
    assert read.op_graph == written.op_graph
    waits = read.op_graph.dependencies[PipelineOp("backward", *backbone, 0)]
    assert {PipelineOp("forward", *backbone, number) for number in (0, 1)} <= set(waits)


@pytest.mark.parametrize(
    "pipeline_replicas",
    [{"encoder": []}, {"encoder": [0, 1, 3, 0]}, {"backbone": [0, 1, 2, 0]}, {"none": [0, 1, 0, 1]}],
)
def test_copies_that_cannot_be_are_refused(document, pipeline_replicas):
    with pytest.raises(UserError, match="no timeline"):
        read_timeline({**document, "pipeline_replicas": pipeline_replicas})


@pytest.mark.parametrize(
    ("key", "value"),
    [("stages", []), ("ops", []), ("ops", [{"kind": "forward"}]), ("edges", [[1, 0]]), ("microbatches", 0)],
)
def test_damage_is_an_error_of_a_line(document, key, value):
    with pytest.raises(UserError) as caught:
        read_timeline({**document, key: value})
    assert "\n" not in str(caught.value)
