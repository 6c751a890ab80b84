"""The page and the notebook fragment of a timeline: every op once, every cause explained, nothing loaded."""

import collections
import dataclasses

import numpy as np
import pytest

from sharding.html.numbers import percent
from sharding.simulation.idle.idle_time import IDLE_CAUSES
from sharding.simulation.pages.drawn_ops import drawn_lanes
from sharding.simulation.pages.html_page import html_fragment, html_page
from sharding.simulation.summary import timeline_summary
from tests.sharding.html.documents import (
    parsed_fragment,
    parsed_page,
    tables,
    tick_positions,
    words,
)
from tests.sharding.steps import uneven_timeline

TITLE = "</script><b>A & B"


@pytest.fixture(scope="module")
def timeline():
    return uneven_timeline()


@pytest.fixture(scope="module")
def root(timeline):
    return parsed_page(html_page(timeline, TITLE))


def test_every_figure_of_a_step_says_whether_it_is_simulated_or_measured(timeline):
    measured = dataclasses.replace(timeline, costs=None)
    for shown, kind, other in ((timeline, "simulated", "measured"), (measured, "measured", "simulated")):
        root = parsed_page(html_page(shown, TITLE))
        told = words(root.find("body"))
        assert f"A {kind} step takes {timeline.step:.2f} s." in told and f"The {kind} step" in told
        assert f"A {other} step" not in told and f"The {other} step" not in told
        figures = [words(node) for node in root.iter("div") if node.get("class") == "figure"]
        assert figures[0] == f"{timeline.step:.2f} s {kind} step"
        captions = [words(node) for node in root.iter("caption")]
        assert captions and all(f"a {kind} step" in caption for caption in captions), captions


def test_the_title_is_the_heading(root):
    assert root.find("head/title").text == root.find("body/h1").text == TITLE


def test_the_drawing_has_every_op_of_every_lane_and_the_idle_time_between_them(timeline, root):
    svg = next(node for node in root.iter("svg") if node.get("role") == "img")
    rectangles = sum((path.get("d") or "").count("M") for path in svg.iter("path"))
    lanes = drawn_lanes(timeline)
    ops = [op for lane in lanes for op in lane.ops if op.op.kind != "global_norm"]  # which takes no time of its own
    spans = [span.op for span in timeline.spans if not span.op.target_unit and span.op.kind != "global_norm"]
    assert collections.Counter(op.op for op in ops) == collections.Counter(spans)
    idle = sum(len(op.idle_before) for lane in lanes for op in lane.ops) + sum(len(lane.idle_after) for lane in lanes)
    assert rectangles == len(ops) + idle and idle > 20


def test_every_cause_of_the_timeline_is_explained_and_no_other_is_listed(timeline, root):
    causes = next(table for table in tables(root) if table[0][-1] == "why devices are idle")
    listed = {row[0]: (row[1], row[-1]) for row in causes[1:]}
    busy, idle = timeline.busy / timeline.step, {cause: lost for cause, lost in timeline.idle.items() if lost}
    assert len(idle) >= 6 and list(listed) == ["busy", *idle]
    assert listed.pop("busy")[0] == percent(busy)
    assert listed == {cause: (percent(lost / timeline.step), IDLE_CAUSES[cause]) for cause, lost in idle.items()}
    drawn = words(root)
    for cause in ("warm-up", "dependency", "cool-down"):
        assert f"idle: {cause}" in drawn
    assert "idle: tensor parallel" not in drawn  # it is inside ops


def test_units_and_stages_have_their_busy_share(timeline, root):
    units, stages = tables(root)[-2:]
    assert [row[0] for row in units[1:]] == ["encoder", "backbone"] and units[0][3] == "busy"
    lanes = [lane for lane in timeline.lanes if lane.rank[0] == "backbone"]
    mean = np.mean([timeline.lane_busy(lane) for lane in lanes])  # both have four devices
    assert timeline.busy_by_unit["backbone"] == pytest.approx(mean) and units[2][3] == percent(mean / timeline.step)
    assert timeline_summary(timeline)["units"][1]["busy_seconds"] == timeline.busy_by_unit["backbone"]
    assert [row[0] for row in stages[1:]] == ["encoder 0", "backbone 0", "backbone 1"]
    shares = [percent(timeline.lane_busy(lane) / timeline.step) for lane in timeline.lanes]
    assert [row[5] for row in stages[1:]] == shares
    assert [lane.busy for lane in drawn_lanes(timeline)] == pytest.approx(
        [timeline.lane_busy(lane) for lane in timeline.lanes]
    )


def test_ticks_of_the_drawing_are_even_and_its_ops_lie_at_their_times(timeline, root):
    svg = next(node for node in root.iter("svg") if node.get("role") == "img")
    ticks = tick_positions(svg)
    assert len(ticks) >= 4
    steps = np.diff([x for x, _ in ticks])
    assert steps == pytest.approx([steps[0]] * len(steps), abs=0.02)
    assert [round(value / (ticks[1][1] - ticks[0][1]), 6) for _, value in ticks] == list(range(len(ticks)))
    assert "time in s" in words(svg) and words(svg).count("time in") == 1
    scale = (ticks[-1][0] - ticks[0][0]) / (ticks[-1][1] - ticks[0][1])
    lane = timeline.lanes[0]  # its forwards, of one microbatch each, are paths of one rectangle
    forwards = [s for s in timeline.spans if s.op.kind == "forward" and s.op.stage_id == lane.stages[0]]
    paths = [path.get("d") for path in svg.iter("path")]
    for span in forwards:
        left = ticks[0][0] + float(span.start.mean()) * scale
        assert any(f"M{left + shift:.2f} " in path for path in paths for shift in (-0.01, 0, 0.01))


def test_a_notebook_shows_the_timeline_without_scripts_and_twice_without_collisions(timeline):
    fragment = html_fragment(timeline)
    root = parsed_fragment(fragment)
    text = words(root)
    assert text.startswith(
        f"A simulated step takes {timeline.step:.2f} s. Devices compute for {percent(timeline.busy / timeline.step)}"
    )
    assert all(IDLE_CAUSES[cause] in text for cause, lost in timeline.idle.items() if lost)
    assert [node.get("aria-label") for node in root.iter("svg") if node.get("role") == "img"] == [
        "Timeline of a simulated step on 3 pipeline ranks",
        "Memory by kind of 3 stages",
    ]
