"""What falls to replicas over which items are dealt, counted item by item."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.costs.batch_costs import replica_loads
from sharding.costs.own_rows import dealt_loads
from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import plan_of_layout
from sharding.planners.tables.replica_shares import WholeItems, WholeRows, replica_sharing
from sharding.specs.layers.layer import LoadColumn, make_loads
from tests.sharding.planners.problems import problem


def divisors(count: int) -> np.ndarray:
    return np.array([number for number in range(1, count + 1) if count % number == 0])


@given(st.lists(st.integers(0, 9), min_size=12, max_size=12), st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_shares_are_those_of_dealt_loads(items, dp, ep):
    loads = make_loads(tokens=7.0 * np.array(items), items=np.array(items))
    per_row = max(float(np.mean(items)), 0.5)
    sharing = replica_sharing(loads, per_row, divisors(12), ep, devices=30)
    if not any(items):
        assert isinstance(sharing, WholeRows)
        return
    shares = sharing.shares(dp)
    totals = np.reshape(items, (-1, dp)).sum(axis=1)
    assert shares.active == pytest.approx((totals > 0).mean())
    assert (shares.replicas % ep == 0).all() and len(set(shares.replicas)) == len(shares.replicas)
    for replicas, rows in zip(shares.replicas.tolist(), shares.rows, strict=True):
        of_kinds, _ = dealt_loads(replica_loads(loads, len(totals), 1)[:, 0], replicas)
        dealt = of_kinds[totals > 0, :, LoadColumn.ITEMS]
        assert rows == pytest.approx(dealt.max(axis=1).mean() / per_row)
    least = sharing.least_share(dp)
    assert (least.count * least.rows <= shares.active * shares.rows * shares.replicas + 1e-9).all()


def test_every_small_number_of_replicas_is_a_choice_and_large_ones_in_steps():
    sharing = WholeItems(
        items=np.full(60, 20.0), per_row=20.0, row_divisors=divisors(60), ep=1, devices=500
    )  # fmt: skip
    replicas = sharing.shares(60).replicas.tolist()
    assert replicas[:32] == list(range(1, 33)) and replicas[-1] == 500 and 60 in replicas
    assert all(second <= first * 17 / 16 + 1 for first, second in zip(replicas[31:], replicas[32:], strict=False))
    assert max(sharing.shares(1).replicas) == 20  # more replicas would never have an item


@pytest.mark.parametrize("items, dealt", [((2, 2, 2, 2), False), ((2, 3, 1, 2), True)])
def test_whole_rows_stay_where_they_are_as_good(items, dealt):
    sharing = WholeItems(items=np.array(items, float), per_row=2.0, row_divisors=divisors(4), ep=1, devices=8)
    assert sharing.deals_items(4, 2) is dealt
    assert sharing.deals_items(4, 3) and sharing.deals_items(2, 4)


def test_a_plan_says_how_many_rows_its_items_are_dealt_over():
    case = problem(devices=30, rows=24, spread=0.6)
    units = [unit for layout in search_layouts(case, 8) for unit in plan_of_layout(case, layout).units]
    assert all(unit.phase_rows in (0, unit.parallelism.dp) for unit in units)
    assert any(unit.phase_rows and unit.parallelism.dp not in (1, 2, 3, 4, 6, 8, 12) for unit in units)
