"""Seconds of hops that occupy both ends, against the costs of whole plans and against textbook orders."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.layouts.hop_seconds import hops_between, hops_within, rank_hop_seconds
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import plan_of_layout
from tests.sharding.planners.problems import build_problem, recipes


@given(recipes())
@settings(max_examples=8, deadline=None)
def test_hops_take_what_they_take_in_the_costs_of_the_plan(recipe):
    """A device is a node here, so that it does not matter which units are next to each other."""
    case = build_problem(recipe)
    node = dataclasses.replace(case.cluster, devices_per_node=1)
    case = dataclasses.replace(case, cluster=node, costs=AnalyticCostModel(node))
    for layout in search_layouts(case, 3):
        plan = plan_of_layout(case, layout)
        costs, units = case.step_costs(plan), {unit.name: unit for unit in plan.units}
        within = {unit: hops_within(units[unit], plan.microbatches, case.sampled_costs) for unit in units}
        for (source, target), seconds in costs.hops.items():
            back = costs.gradient_hops.get((source, target))
            if source[0] == target[0]:
                np.testing.assert_allclose(seconds.max(axis=1).mean(), within[source[0]][0, source[1]])
                assert back is None or back.max(axis=1).mean() == pytest.approx(within[source[0]][1, source[1]])
            else:
                edge = hops_between(units[source[0]], units[target[0]], plan.microbatches, case.sampled_costs)
                np.testing.assert_allclose(seconds.max(axis=1), edge.forward)
                assert back is None or back.max(axis=1) == pytest.approx(edge.backward)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_hop_counts_on_the_rank_that_sends_and_on_the_rank_that_receives(pp, chunks, seed):
    hops = np.random.default_rng(seed).random(pp * chunks - 1)
    expected = np.zeros(pp)
    for stage, seconds in enumerate(hops):
        expected[stage % pp] += seconds
        expected[(stage + 1) % pp] += seconds
    np.testing.assert_allclose(rank_hop_seconds(hops, pp), expected)
