"""Ranges of simulated steps: which published runs give them, and when there is none."""

import dataclasses
import json

import numpy as np
import pytest

from configs.clusters import CLUSTERS
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.published_errors import StepRange, error_families, published_errors, step_range
from sharding.plans.plan import Plan
from sharding.simulation.summary import timeline_summary
from tests.sharding.planners.problems import problem
from tests.unit_plans import module_unit

LAYOUT = (
    module_unit("vision", (0,), layers=(3,)),
    module_unit("backbone", (1, 2), layers=(2, 2)),
    module_unit("generator", (3,)),
)


def on(cluster: str):
    """The problem on devices of a known kind."""
    known = CLUSTERS[cluster]
    return dataclasses.replace(problem(rows=8, devices=4), cluster=known, costs=AnalyticCostModel(known))


def test_the_quantiles_of_a_familys_errors_give_the_range():
    errors = np.array([*published_errors()["pipeline"].values()])
    span = step_range(2.0, ("pipeline",))
    assert span.least < span.most and span.runs == len(errors)
    measured = 2.0 / (1 + errors)  # of a step that is simulated to take two seconds, by each run's error
    inside = np.mean((span.least <= measured) & (measured <= span.most))
    assert 0.7 <= inside <= 0.9
    both = step_range(2.0, ("pipeline", "diffusion"))
    assert both.runs == span.runs + len(published_errors()["diffusion"])


def test_ranges_overlap_where_a_step_may_lie_in_both():
    low = StepRange(1.0, 2.0, 9)
    assert low.overlaps(StepRange(2.0, 3.0, 9)) and low.overlaps(StepRange(1.2, 1.3, 9))
    assert not low.overlaps(StepRange(2.1, 3.0, 9)) and not StepRange(2.1, 3.0, 9).overlaps(low)


def test_families_follow_from_the_modules_and_how_they_are_divided():
    graph, plan = problem().graph, Plan(LAYOUT)
    assert error_families(plan, graph) == ("pipeline", "vision_language", "diffusion")
    backbone = module_unit("backbone", (1, 2, 4, 5), layers=(2, 2), dp=2, fsdp=2)
    sharded = dataclasses.replace(plan, units=(LAYOUT[0], backbone, LAYOUT[2]))
    assert error_families(sharded, graph)[0] == "fully_sharded"


def test_a_step_has_a_range_where_published_runs_are_of_such_devices():
    timeline = on("h100").simulate(Plan(LAYOUT, 8))
    assert timeline.step_range == step_range(timeline.step, ("pipeline", "vision_language", "diffusion"))
    summary = json.loads(json.dumps(timeline_summary(timeline)))
    assert summary["step_range_seconds"] == list(timeline.step_range[:2])


@pytest.mark.parametrize("cluster", ["cpu", "b200", "h20"])
def test_without_published_runs_there_is_no_range(cluster):
    timeline = on(cluster).simulate(Plan(LAYOUT, 8))
    assert timeline.step_range is None and timeline_summary(timeline)["step_range_seconds"] is None


def test_costs_without_an_effect_have_no_range():
    bare = CLUSTERS["h100"].without(("jitter",))
    changed = dataclasses.replace(on("h100"), cluster=bare, costs=AnalyticCostModel(bare))
    assert changed.simulate(Plan(LAYOUT, 8)).step_range is None
