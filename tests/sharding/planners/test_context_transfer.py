"""The form in which context-parallel ranks reach each other's positions: never one with a longer step."""

import dataclasses

import pytest

from configs.clusters import Link
from sharding.planners.context_transfer import with_best_context_transfers
from sharding.planners.policies.auto import run_policy
from sharding.planners.tables.fixed_ranks import FixedRanks
from tests.sharding.planners.problems import problem


def on_links(bandwidth: float, cp: int):
    case = problem(devices=16)
    link = Link(bandwidth, 1e-9)
    cluster = dataclasses.replace(case.cluster, intra_node=link, inter_node=link)
    costs = dataclasses.replace(case.costs, cluster=cluster)
    return dataclasses.replace(case, cluster=cluster, costs=costs, fixed_ranks={"backbone": FixedRanks(cp, 1)})


@pytest.mark.parametrize("bandwidth", [1e5, 1e9])
def test_the_shorter_step_is_kept(bandwidth):
    case = on_links(bandwidth, 2)
    plan = run_policy(case, "disaggregated").plan
    other = {"ring": "all_to_all", "all_to_all": "ring"}[plan.unit_of("backbone").parallelism.context_transfer]
    units = tuple(
        unit.with_parallelism(context_transfer=other) if "backbone" in unit.modules else unit for unit in plan.units
    )
    assert case.simulate(plan).step <= case.simulate(dataclasses.replace(plan, units=units)).step


def test_a_ring_is_kept_where_heads_cannot_be_divided():
    case = on_links(1e9, 4)  # of 2 key-value heads
    plan = run_policy(case, "disaggregated").plan
    timeline = case.simulate(plan)
    assert with_best_context_transfers(case, plan, timeline) == (plan, timeline)
    assert plan.unit_of("backbone").parallelism.context_transfer == "ring"
