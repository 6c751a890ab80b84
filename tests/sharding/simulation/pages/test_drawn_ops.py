"""Drawings and traces show every op once and idle time in its place."""

import collections
import json

import numpy as np
import pytest
from hypothesis import given, settings

from sharding.simulation.pages import timeline_drawing
from sharding.simulation.pages.drawn_ops import drawn_hops, drawn_lanes
from sharding.simulation.pages.perfetto import perfetto_trace
from sharding.simulation.timeline import Timeline
from tests.sharding.steps import build_step, step_recipes, uneven_timeline


def on_stages(timeline: Timeline) -> collections.Counter:
    """(kind, stage, microbatch) of what runs on the devices of one stage."""
    ops = [span.op for span in timeline.spans if not span.op.target_unit and span.op.kind != "global_norm"]
    return collections.Counter((op.kind, *op.stage_id, op.microbatch) for op in ops)


@pytest.mark.parametrize("rendezvous", [False, True])
def test_drawn_ops_and_idle_time_of_a_lane_add_up_to_the_step(rendezvous):
    timeline = uneven_timeline(rendezvous)
    for lane in drawn_lanes(timeline):
        idle, last = collections.Counter(), 0.0
        for op in lane.ops:
            idle.update(op.idle_before)
            if not rendezvous:
                assert op.start - sum(op.idle_before.values()) == pytest.approx(last, abs=1e-9)
            last = op.end
        idle.update(lane.idle_after)
        inside = {"tensor parallel", "gather", "reduce", "hop"}
        (rank,) = lane.ranks
        assert lane.busy == pytest.approx(timeline.lane_busy(rank))
        expected = {cause: seconds for cause, seconds in timeline.lane_idle(rank).items() if cause not in inside}
        outside = {cause: seconds for cause, seconds in idle.items() if cause not in inside}
        assert outside == pytest.approx({cause: seconds for cause, seconds in expected.items() if seconds})


@settings(max_examples=30, deadline=None)
@given(step_recipes())
def test_a_lane_has_all_that_its_devices_run_of_any_unit(recipe):
    step = build_step(recipe)
    timeline, op_graph = step.run(), step.op_graph
    lanes, group_of = drawn_lanes(timeline), dict(timeline.groups.members.tolist())
    assert sorted(device for lane in lanes for device in lane.devices) == sorted(op_graph.stage_graph.all_devices)
    for lane in lanes:
        assert {rank.rank for rank in lane.ranks} == {
            rank for rank, held in op_graph.stage_graph.rank_devices.items() if not held.isdisjoint(lane.devices)
        }
        on_devices = [
            op
            for op in step.schedule.ops
            if not op.target_unit and not op_graph.devices_of(op).isdisjoint(lane.devices)
        ]
        assert collections.Counter(op.op for op in lane.ops) == collections.Counter(on_devices)
        by_device = np.array(
            [[seconds[group_of[device]] for seconds in timeline.idle_by_group.values()] for device in lane.devices]
        )
        assert lane.busy + by_device.sum(axis=1).mean() == pytest.approx(timeline.step)
        drawn = sum(sum(op.idle_before.values()) for op in lane.ops) + sum(lane.idle_after.values())
        inside = [cause in ("tensor parallel", "gather", "reduce") for cause in timeline.idle_by_group]
        before = by_device.sum(axis=1).mean() - by_device[:, inside].sum(axis=1).mean()
        assert drawn == pytest.approx(before, abs=1e-9)
        halves = [op for op in lane.ops if op.half != "whole"]
        for upper, lower in zip(halves[::2], halves[1::2], strict=True):
            assert (upper.half, lower.half) == ("upper", "lower") and lower.op in step.schedule.bundled
            assert (upper.start, upper.end) == (lower.start, lower.end) and not lower.idle_before
    assert len({lane.name for lane in lanes}) == len(lanes)


def test_hops_that_occupy_devices_are_drawn_in_the_lanes_of_both_ends():
    timeline = uneven_timeline(rendezvous=True)
    hops = [op.op for lane in drawn_lanes(timeline) for op in lane.ops if op.op.kind in ("hop", "gradient_hop")]
    assert set(collections.Counter(hops).values()) == {2}
    assert len(set(hops)) == len(list(drawn_hops(timeline)))


def test_the_trace_has_a_process_per_unit_a_thread_per_lane_and_an_event_per_op():
    timeline = uneven_timeline()
    trace = json.loads(perfetto_trace(timeline))
    events = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        events[event["ph"]].append(event)
    names = {(e["pid"], e["args"]["name"]) for e in events["M"] if e["name"] == "process_name"}
    assert {name for _, name in names} == {"encoder", "backbone"} and len(names) == 2
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    assert sorted(threads.values()) == ["stage 0, devices 0-2", "stage 0, devices 3-6", "stage 1, devices 7-10"]
    unit_of = dict(names)
    ran = [e for e in events["X"] if e["cat"] not in ("idle", "global_norm")]
    drawn = [(e["cat"], unit_of[e["pid"]], e["args"]["virtual stage"], e["args"]["microbatch"]) for e in ran]
    assert collections.Counter(drawn) == on_stages(timeline)
    assert trace["otherData"]["step_seconds"] == timeline.step


def test_events_of_a_thread_do_not_overlap_and_arrows_begin_and_end_inside_one():
    trace = json.loads(perfetto_trace(uneven_timeline()))["traceEvents"]
    slices = collections.defaultdict(list)
    for event in trace:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in slices.values():
        spans.sort()
        assert all(later[0] >= earlier[1] - 1e-3 for earlier, later in zip(spans[:-1], spans[1:], strict=True))
    starts, ends = ({e["id"]: e for e in trace if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() and len(starts) == 2 * 4 * 4
    for arrow in (*starts.values(), *ends.values()):
        spans = slices[arrow["pid"], arrow["tid"]]
        assert any(first <= arrow["ts"] <= last for first, last in spans)
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)


def test_a_long_lane_is_drawn_column_by_column_with_the_same_shares_of_the_step():
    """Alternating ops of 1 and 2 seconds with 1 second between them, far more than there are columns."""
    shapes = []
    for start in np.arange(0.0, 4000.0, 4.0):
        shapes += [
            timeline_drawing._Shape("blue", start, start + 1, 1.0),
            timeline_drawing._Shape("orange", start + 1, start + 3, 1.0),
        ]
    drawn = timeline_drawing._in_columns(shapes, np.linspace(0.0, 4000.0, 301))
    assert len(drawn) <= 300
    for colour, share in (("blue", 0.25), ("orange", 0.5)):
        seconds = sum(shape.end - shape.start for shape in drawn if shape.colour == colour)
        assert seconds == pytest.approx(share * 4000.0, rel=0.02)
    assert all(one.end <= other.start for one, other in zip(drawn, drawn[1:], strict=False))
