"""Capacities of planned rows are large enough."""

import dataclasses

import numpy as np
import pytest

from sharding.costs.own_rows import fullest_row
from sharding.planners.capacities import capacities_of, sum_bound
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import make_unit
from sharding.planners.layouts.schedule_fields import scheduled_plan
from sharding.plans.unit_plan import MOST_CAPACITIES
from tests.sharding.planners.problems import problem


def test_sums_hardly_ever_exceed_their_bound():
    random = np.random.default_rng(0)
    values = random.gamma(2.0, 10.0, 100)
    sums = random.choice(values, (20_000, 12)).sum(axis=1)
    assert (sums > sum_bound(values, 12, 1e-2)).mean() <= 1e-2
    assert sum_bound(values, 12, 1e-9) >= sums.max() and sum_bound(values, 2, 1e-9) == pytest.approx(2 * values.max())
    assert sum_bound(np.full(5, 3.0), 7, 1e-9) == pytest.approx(21.0)


def test_planned_capacities_hold_every_microbatch_that_plans_are_simulated_with():
    case = problem(devices=30, rows=24, spread=0.6)
    with_rows = 0
    for layout in search_layouts(case, 8):
        plan = scheduled_plan(case, layout)
        for unit in plan.units:
            assert bool(unit.capacities) == bool(unit.phase_rows)
            if unit.phase_rows:
                with_rows += 1
                totals = case.sampled_rows[unit.name].reshape(plan.microbatches, -1, 4).sum(axis=1)
                assert fullest_row(totals, unit.phase_rows, case.graph[unit.name]).max() <= unit.capacities[-1]
                assert len(unit.capacities) <= MOST_CAPACITIES
                assert not any(size % case.graph[unit.name].values_per_slot for size in unit.capacities)
    assert with_rows


def test_tensor_ranks_that_divide_positions_divide_all_capacities():
    case = problem(devices=30, rows=24, spread=0.6)
    slot = case.graph["vision"].values_per_slot
    unit = make_unit(("vision",), dp=3, tp=4, layers=(3,), recompute="none", rows=3)
    assert any(size % (4 * slot) for size in capacities_of(case, unit.with_parallelism(collectives="all_reduce"), 6))
    sizes = capacities_of(case, unit.with_parallelism(collectives="ring"), 6)
    assert sizes and not any(size % (4 * slot) for size in sizes)


def test_long_rows_hold_whole_blocks_of_positions():
    case = problem(devices=30, rows=24, spread=0.6)
    unit = make_unit(("vision",), dp=1, tp=1, layers=(3,), recompute="none", rows=1)
    block = 64 * case.graph["vision"].values_per_position
    short, long = (capacities_of(case, unit, microbatches) for microbatches in (24, 1))
    assert min(long) >= 16 * block > max(short)
    assert not any(size % block for size in long) and any(size % block for size in short)


def test_the_largest_capacity_of_a_run_holds_full_rows():
    case = dataclasses.replace(problem(rows=8), row_capacities={"vision": 640})
    unit = make_unit(("vision",), dp=3, tp=1, layers=(3,), recompute="none", rows=3)
    assert capacities_of(case, unit, 2)[-1] == 2 * 640  # two of a microbatch's four rows
    assert capacities_of(case, dataclasses.replace(unit, phase_rows=6), 2)[-1] == 640
