"""Memory by kind and gathers of weights on the page of a simulated step, against the costs that they come from."""

import dataclasses

import pytest

from configs.architectures import ModelConfig
from sharding.html.numbers import percent, seconds, size
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.simulation.pages.html_page import html_fragment, html_page
from tests.sharding.html.documents import parsed_fragment, parsed_page, tables, words
from tests.sharding.planners.problems import BACKBONE, VISION, problem

PROBLEM = problem(ModelConfig((VISION,), BACKBONE, ()), memory=2e7)
ENCODER = UnitPlan("vision", ("vision",), (0, 1, 2, 3), layers=(3,), parallelism=Parallelism(dp=4))
SHARDED = UnitPlan(
    "backbone", ("backbone",), (4, 5, 6, 7), layers=(4,), recompute=("full",), parallelism=Parallelism(dp=4, fsdp=4)
)


def simulated(*units: UnitPlan):
    return PROBLEM.simulate(Plan(units, microbatches=2))


@pytest.fixture(scope="module")
def timeline():
    return simulated(ENCODER, SHARDED)


def bars(root, label: str) -> list[tuple[str, float, float]]:
    """Hint, left end and width of the bars of a drawing."""
    (svg,) = (node for node in root.iter("svg") if (node.get("aria-label") or "").startswith(label))
    shapes = [(node.find("title"), node) for node in svg.iter("rect")]
    return [(t.text, float(node.get("x")), float(node.get("width"))) for t, node in shapes if t is not None]


def test_memory_by_kind_is_that_of_the_costs_and_adds_up_to_the_peak(timeline):
    root = parsed_page(html_page(timeline, "a plan"))
    head, *rows = next(cells for cells in tables(root) if cells[0][:2] == ["stage", "weights"])
    assert head[1:4] == ["weights", "gradients", "optimizer state"] and head[-2:] == ["all", "of a device"]
    for lane, row in zip(timeline.lanes, rows, strict=True):
        static = timeline.costs.stages[lane.stages[0]].static
        saved = timeline.costs.stages[lane.stages[0]].saved_bytes
        peak = timeline.lane_peak_memory(lane)
        activations = peak - sum(static) + static.reserved
        assert static.reserved + saved.max() <= activations <= static.reserved + saved.sum(axis=0).max()
        cells = dict(zip(head, row, strict=True))
        assert cells["stage"] == lane.name
        assert [cells[name] for name in head[1:4]] == [size(part) for part in static[:3]]
        assert cells["activations"] == size(activations)
        assert cells["gathered layers"] == size(static.gathered)
        assert cells["one layer at work"] == size(static.workspace)
        assert (cells["all"], cells["of a device"]) == (size(peak), percent(peak / 2e7))
    by_stage = [dict(zip(head, row, strict=True))["gathered layers"] for row in rows]
    assert by_stage[0] == size(0) != by_stage[1]
    fullest = max(timeline.lanes, key=timeline.lane_peak_memory)
    needed = timeline.lane_peak_memory(fullest)
    assert f"The fullest stage, {fullest.name}, takes {size(needed)} of the 20.0 MB of a device" in words(root)


def test_bars_of_memory_are_as_long_as_their_bytes(timeline):
    drawn = bars(parsed_page(html_page(timeline, "a plan")), "Memory by kind of 2 stages")
    lengths = {hint.partition(": ")[0]: wide for hint, _, wide in drawn}
    held = {f"{lane.name}, weights": timeline.lane_memory(lane)["weights"] for lane in timeline.lanes}
    held |= {f"{lane.name}, optimizer state": timeline.lane_memory(lane)["optimizer"] for lane in timeline.lanes}
    pixels = {lengths[name] / bytes_ for name, bytes_ in held.items()}
    assert max(pixels) == pytest.approx(min(pixels), rel=0.02)  # lengths are written with two decimals


def test_units_on_the_same_devices_are_one_bar():
    together = dataclasses.replace(SHARDED, devices=ENCODER.devices)
    timeline = PROBLEM.simulate(Plan((ENCODER, together), microbatches=2))
    root = parsed_page(html_page(timeline, "a plan"))
    _, row = next(cells for cells in tables(root) if cells[0][:2] == ["stage", "weights"])
    assert row[0] == "vision 0, backbone 0"
    weights = sum(costs.static.weights for costs in timeline.costs.stages.values())
    assert row[1] == size(weights) and row[-2] == size(timeline.lane_peak_memory(timeline.lanes[0]))


def test_gathers_are_those_of_the_costs_and_their_bars_overlap_by_what_is_hidden(timeline):
    root = parsed_page(html_page(timeline, "a plan"))
    passes = timeline.costs.stages["backbone", 0].sharded
    assert timeline.costs.stages["vision", 0].sharded is None
    exposed, collectives = (
        passes.exposed_forward + passes.exposed_backward,
        passes.gather + passes.gather_again + passes.scatter,
    )
    assert 0 < exposed < collectives
    head, *rows = next(cells for cells in tables(root) if "reduce-scatters" in cells[0])
    computing = passes.forward + passes.backward
    assert rows == [
        ["backbone 0"]
        + [seconds(value) for value in (passes.gather, passes.gather_again, passes.scatter, computing, exposed)]
        + [percent(1 - exposed / collectives)]
    ]
    told = words(root)
    assert "Gathers of fully sharded weights" in told
    assert f"{seconds(exposed)} remain exposed, {percent(2 * exposed / timeline.step)} of the step" in told
    forward, gather, backward, again, scatter = bars(root, "Collectives of weights")
    hidden = (gather[1] + gather[2] - forward[1], scatter[1] + scatter[2] - backward[1])
    pixel = (backward[1] + backward[2] - again[1]) / (passes.backward + passes.exposed_backward)
    assert hidden[0] / pixel == pytest.approx(passes.gather - passes.exposed_forward, rel=0.1)
    assert hidden[1] / pixel == pytest.approx(passes.gather_again + passes.scatter - passes.exposed_backward, rel=0.1)


def test_a_plan_without_sharded_units_has_no_section_of_gathers_and_a_measured_step_no_memory(timeline):
    whole = simulated(ENCODER, SHARDED.with_parallelism(fsdp=1))
    measured = dataclasses.replace(timeline, costs=None)
    both = ["Gathers of fully sharded weights", "Memory of a device"]
    for shown, kept in ((timeline, both), (whole, both[1:]), (measured, [])):
        root = parsed_page(html_page(shown, "a plan"))
        assert [words(node) for node in root.iter("h2") if words(node) in both] == kept
        assert (shown is timeline) == any("gathered layers" in cells[0] for cells in tables(root))


def test_a_notebook_shows_both(timeline):
    root = parsed_fragment(html_fragment(timeline))
    labels = [node.get("aria-label") or "" for node in root.iter("svg")]
    assert any(label.startswith("Memory by kind") for label in labels)
    assert any(label.startswith("Collectives of weights") for label in labels)
