"""Idle time that other units fill: by hand, and what must add up on any devices."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings

from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.ops import COMPUTE_KINDS, OpKind, PipelineOp, Schedule
from sharding.simulation.idle.filled_idle import units_on_shared_devices
from sharding.simulation.pages.drawn_ops import drawn_lanes
from sharding.simulation.pages.html_page import html_page
from sharding.simulation.pages.html_tables import efficiency_in_words
from sharding.simulation.summary import timeline_summary
from sharding.simulation.timeline import Timeline
from tests.sharding.html.documents import parsed_page, words
from tests.sharding.stage_graphs import training
from tests.sharding.steps import SimulatedStep, build_step, stage_costs, step_costs, step_recipes

ENCODER, FIRST, SECOND = ("encoder", 0), ("backbone", 0), ("backbone", 1)


def colocated(
    order: list[tuple[OpKind, tuple[str, int]]], encoder: float, waits: float = 0.0, bundled: int | None = None
) -> Timeline:
    """An encoder on the devices of the second of two backbone stages, which it does not feed; one microbatch.

    Backbone stages take a second forward and two backward, the encoder as given. `bundled` is the place of an op that
    runs in one program with the one before it.
    """
    devices = {ENCODER: np.array([[1]]), FIRST: np.array([[0]]), SECOND: np.array([[1]])}
    graph = StageGraph({stage: frozenset(held.ravel().tolist()) for stage, held in devices.items()}, ((FIRST, SECOND),))
    op_graph = training(graph, 1)
    stages = {
        stage: stage_costs(
            np.full((1, 1), forward), np.full((1, 1), 2 * forward), forward_communication=np.full((1, 1), wait)
        )
        for stage, forward, wait in ((ENCODER, encoder, 0.0), (FIRST, 1.0, 0.0), (SECOND, 1.0, waits))
    }
    ops = list(op_graph.prologue)
    for kind, stage in order:
        ops.append(PipelineOp(kind, *stage, 0))
        ops += (op_graph.forward_hops if kind == "forward" else op_graph.backward_hops)(stage, 0)
    together = frozenset() if bundled is None else frozenset([PipelineOp(order[bundled][0], *order[bundled][1], 0)])
    schedule = Schedule(op_graph, (*ops, *op_graph.epilogue), together)
    return SimulatedStep(devices, schedule, step_costs(op_graph, stages)).run()


ENCODER_FIRST: list[tuple[OpKind, tuple[str, int]]] = [
    *(("forward", ENCODER), ("forward", FIRST), ("forward", SECOND)),
    *(("backward", SECOND), ("backward", FIRST), ("backward", ENCODER)),
]


def test_what_fits_before_and_after_a_stage_fills_its_warm_up_and_cool_down():
    timeline = colocated(ENCODER_FIRST, 0.5)
    (unit_idle,) = timeline.filled_idle
    assert (unit_idle.unit, unit_idle.others, timeline.step) == ("backbone", ("encoder",), 6.0)
    # The second stage idles for 1 second and for 2, the first for 3 in between; means over both devices.
    assert {cause: lost for cause, lost in unit_idle.idle.items() if lost} == {
        "warm-up": 0.5,
        "dependency": 1.5,
        "cool-down": 1.0,
    }
    assert {cause: lost for cause, lost in unit_idle.filled.items() if lost} == {"warm-up": 0.25, "cool-down": 0.5}
    assert unit_idle.filled_share == 0.75 / 3.0 and unit_idle.scheduling_efficiency == 1.0


@pytest.mark.parametrize(
    ("encoder", "efficiency"), [(1.0, 1.0), (1.2, 1 - 0.6 * 2 / 3.6), (2.0, 1 - 3.0 * 2 / 6.0), (9.0, 0.0)]
)
def test_what_lengthens_the_step_lowers_the_efficiency(encoder, efficiency):
    """Beyond 1 second the forward, and beyond 2 the backward, lengthen the step on both devices."""
    timeline = colocated(ENCODER_FIRST, encoder)
    assert timeline.step == pytest.approx(6.0 + max(0.0, 3 * (encoder - 1.0)))
    assert timeline.filled_idle[0].scheduling_efficiency == pytest.approx(efficiency)


def test_in_a_bundle_all_time_is_idle_in_which_the_unit_computes_nothing():
    order = [ENCODER_FIRST[1], ENCODER_FIRST[2], ENCODER_FIRST[0], *ENCODER_FIRST[3:]]
    timeline = colocated(order, 0.25, waits=0.5, bundled=2)
    (unit_idle,) = timeline.filled_idle
    # The encoder's forward is hidden by half of the waits of the second stage's.
    assert timeline.step == 6.0 and unit_idle.scheduling_efficiency == 1.0
    assert (unit_idle.idle["tensor parallel"], unit_idle.filled["tensor parallel"]) == (0.25, 0.125)
    assert timeline.idle["tensor parallel"] == 0.125  # what nothing computes beside
    assert unit_idle.filled["cool-down"] == 0.25 and unit_idle.filled["warm-up"] == 0.0


@settings(max_examples=40, deadline=None)
@given(step_recipes())
def test_others_compute_only_in_idle_time_and_all_of_it_counts(recipe):
    step = build_step(recipe)
    timeline = step.run()
    group_of = dict(timeline.groups.members.tolist())
    for unit_idle in timeline.filled_idle:
        devices = sorted(
            {d for stage, held in step.devices.items() if stage[0] == unit_idle.unit for d in held.ravel().tolist()}
        )
        assert {group_of[device] for device in devices}
        busy = {unit: dict.fromkeys(devices, 0.0) for unit in timeline.lanes_of_units}
        for span in timeline.spans:
            if span.op.kind in (*COMPUTE_KINDS, "update"):
                for replica, held in enumerate(step.replicas(span.op.stage_id, span.op.microbatch)):
                    for device in set(held.tolist()).intersection(devices):
                        busy[span.op.unit][device] += span.compute_seconds[replica]
        alone, others = (
            sum(sum(busy[unit].values()) for unit in units) / len(devices)
            for units in ([unit_idle.unit], unit_idle.others)
        )
        assert sum(unit_idle.idle.values()) + alone == pytest.approx(timeline.step)
        assert sum(unit_idle.filled.values()) == pytest.approx(others, abs=1e-9)
        assert all(-1e-9 <= unit_idle.filled[cause] <= lost + 1e-9 for cause, lost in unit_idle.idle.items())
        assert unit_idle.scheduling_efficiency is not None and 0 <= unit_idle.scheduling_efficiency <= 1


def test_a_unit_on_the_devices_of_two_others_counts_for_both():
    devices = {
        ("vision", 0): frozenset([0, 1]),
        ("near", 0): frozenset([0]),
        ("far", 0): frozenset([1]),
        ("own", 0): frozenset([2]),
    }
    graph = StageGraph(devices, ())
    assert units_on_shared_devices(graph, {"vision": 1.0, "near": 5.0, "far": 4.0, "own": 9.0}) == {
        "near": ("vision",),
        "far": ("vision",),
    }
    assert units_on_shared_devices(graph, {"vision": 8.0, "near": 5.0, "far": 4.0, "own": 9.0}) == {
        "vision": ("near", "far")
    }


def test_the_page_and_the_summary_say_what_is_filled():
    timeline = colocated(ENCODER_FIRST, 0.5)
    root = parsed_page(html_page(timeline, "colocated"))
    told, lanes = words(root), drawn_lanes(timeline)
    assert "Idle time of backbone if it were alone on its devices, filled by encoder" in told
    assert "Scheduling efficiency: 100.0% of the work of encoder on the devices of backbone runs in time that" in told
    assert "forward of encoder" in told and "forward of backbone" not in told
    assert [lane.name for lane in lanes] == ["backbone 0", "backbone 1"]
    assert [rank.name for rank in lanes[1].ranks] == ["backbone 1", "encoder 0"]
    (summary,) = json.loads(json.dumps(timeline_summary(timeline)))["filled_idle"]
    assert summary["unit"] == "backbone" and summary["scheduling_efficiency"] == 1.0
    (unit_idle,) = timeline.filled_idle
    for nothing in (None, 0.0, 0.0004):  # measured; all of the work lengthens the step; as good as all
        assert efficiency_in_words(dataclasses.replace(unit_idle, scheduling_efficiency=nothing)) == ""
    assert summary["idle"]["cool-down"] == {"seconds": 1.0, "filled_seconds": 0.5, "filled_share": 0.5}
