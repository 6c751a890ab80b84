"""The estimate of a layout's step against its simulation, and what it sees that the search's objective does not."""

import dataclasses

import pytest
from hypothesis import given, settings

from configs.architectures import ModelConfig
from configs.clusters import Link
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import plan_of_layout
from sharding.planners.layouts.schedule_fields import scheduled_plan
from sharding.planners.layouts.step_estimate import StepEstimate
from tests.sharding.planners.problems import (
    AUDIO,
    BACKBONE,
    GENERATOR,
    TRANSFORMER,
    VISION,
    build_problem,
    problem,
    recipes,
    uniform,
)

WHOLE = ModelConfig((VISION,), BACKBONE, (GENERATOR,))


@given(recipes())
@settings(max_examples=8, deadline=None)
def test_one_microbatch_alone_takes_its_estimate(recipe):
    """Without a second microbatch nothing waits for a device: only hops are left out.

    All devices are in one node: an estimate does not know which units are placed across two.
    """
    case = uniform(build_problem({**recipe, "chunks": (1,)}))
    node = dataclasses.replace(case.cluster, devices_per_node=case.devices)
    case = dataclasses.replace(case, cluster=node, costs=AnalyticCostModel(node))
    for layout in search_layouts(case, 6):
        if layout.microbatches == 1:
            timeline = case.simulate(plan_of_layout(case, layout))
            hops = sum(
                float(seconds.max())
                for table in (timeline.costs.hops, timeline.costs.gradient_hops)
                for seconds in table.values()
            )
            estimate = StepEstimate(case).seconds(layout)
            assert timeline.step * (1 - 1e-9) - hops <= estimate
            assert estimate <= timeline.step * 1.2


def test_a_pipeline_of_one_stage_takes_its_estimate():
    case = problem(ModelConfig((), BACKBONE, ()), devices=1)
    (layout,) = search_layouts(case)
    simulated = case.simulate(plan_of_layout(case, layout)).step
    assert StepEstimate(case).seconds(layout) == pytest.approx(simulated, rel=0.05)


def test_it_sees_what_the_objective_leaves_out():
    case = problem(devices=14, rows=24, spread=0.6)
    slow = dataclasses.replace(case.cluster, intra_node=Link(2e7, 1e-6), inter_node=Link(2e7, 1e-5))
    case = dataclasses.replace(case, cluster=slow, costs=AnalyticCostModel(slow))  # gradients take long to reduce
    layouts = search_layouts(case, 6)
    steps = [case.simulate(plan_of_layout(case, layout)).step for layout in layouts]
    estimate = StepEstimate(case)
    errors = [abs(estimate.seconds(layout) / step - 1) for layout, step in zip(layouts, steps, strict=True)]
    objective_errors = [abs(layout.seconds / step - 1) for layout, step in zip(layouts, steps, strict=True)]
    assert sum(errors) < sum(objective_errors) and max(errors) < 0.1


@pytest.mark.parametrize(
    ("model", "devices", "rows", "chunks", "bound"),
    [
        (WHOLE, 14, 24, 1, 0.08),
        (WHOLE, 24, 48, 1, 0.1),
        (WHOLE, 14, 24, 2, 0.2),
        (WHOLE, 24, 48, 2, 0.15),
        (ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,)), 24, 24, 1, 0.15),
        (ModelConfig((VISION,), BACKBONE, ()), 16, 32, 2, 0.1),
        (ModelConfig((), BACKBONE, (TRANSFORMER,)), 16, 32, 1, 0.05),
    ],
)
def test_it_knows_that_hops_occupy_both_ends(model, devices, rows, chunks, bound):
    """On a slow network; the estimate where hops occupy no device is farther off."""
    case = problem(model, devices, rows, chunks=(1, chunks))
    slow = dataclasses.replace(case.cluster, inter_node=Link(2e7, 1e-5))
    free = dataclasses.replace(case, cluster=slow, costs=AnalyticCostModel(slow))
    case = dataclasses.replace(free, hops="rendezvous")
    layouts = search_layouts(case, 6, chunks=chunks)
    steps = [case.simulate(scheduled_plan(case, layout)).step for layout in layouts]
    estimate, without = (
        [each.seconds(layout) / step - 1 for layout, step in zip(layouts, steps, strict=True)]
        for each in (StepEstimate(case), StepEstimate(free))
    )
    assert sum(map(abs, estimate)) / len(layouts) <= bound < sum(map(abs, without)) / len(layouts)
