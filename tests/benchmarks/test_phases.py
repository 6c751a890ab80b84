"""The benchmark of rows of its own: what it draws fits, and what it compares is the same training."""

import numpy as np

from benchmarks.phases import ROW_TOKENS, ROWS, draw_items, host_rows, with_own_rows
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan


def test_the_images_drawn_lie_side_by_side_in_rows_that_hold_them():
    items = draw_items(np.random.default_rng(1))
    assert len(set(items.rows.tolist())) > ROWS // 2 and (items.places + items.lengths).max() <= ROW_TOKENS
    for row in (0, 7, ROWS - 1):
        own = items.rows == row
        np.testing.assert_array_equal(items.places[own], np.cumsum(items.lengths[own]) - items.lengths[own])


def test_exactly_the_tokens_needed_are_sent():
    (sent,) = (row for row in host_rows() if row["name"] == "tokens sent over tokens needed")
    assert sent["value"] == 1 and sent["met"]


def test_units_of_one_encoder_or_generator_get_the_rows_of_the_batch():
    units = (
        UnitPlan("eyes", ("vision",), (0, 1), dp=2),
        UnitPlan("trunk", ("audio", "backbone"), (2,), layers=(2,)),
        UnitPlan("generator", ("generator",), (3,)),
    )
    assert [unit.rows for unit in with_own_rows(Plan(units, 2), "backbone", 8).units] == [4, 0, 4]
