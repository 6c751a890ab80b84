"""How full rows are, how far their loads are apart, and the numbers of rows that devices divide."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmjax.planning.samples.sample_rows import MOST_OTHER_ROWS, SampleRows, suited_rows
from sharding.specs.row_load_statistics import RowLoadStatistics


def made(tokens, items, step_rows, rows=None):
    backbone = np.zeros((len(tokens), 4))
    backbone[:, 0], backbone[:, 2] = tokens, 2
    generator = np.zeros_like(backbone)
    generator[:, 2] = items
    statistics = RowLoadStatistics({"backbone": backbone, "generator": generator}, step_rows)
    return SampleRows(
        grouping="isf",
        rows=rows or step_rows,
        statistics=statistics,
        positions={"backbone": 100},
        backbone="backbone",
    )


def test_fill_and_imbalance_are_means_over_steps():
    rows = made([100, 50, 80, 80], [0, 3, 0, 0], 2)
    assert rows.fill == {"backbone": 0.775}
    assert rows.imbalance == {"backbone": (100 / 75 + 1) / 2, "generator": (2 + 1) / 2}
    assert rows.samples_per_row == 2 and rows.samples_per_step == 4


def test_batches_are_the_steps_in_order():
    rows = made([100, 50, 80, 70], [0, 3, 1, 0], 2)
    assert [batch["backbone"][:, 0].tolist() for batch in rows.batches] == [[100, 50], [80, 70]]


def test_gin_lines_name_rows_tokens_and_grouping():
    lines = ("data_config.DataConfig:", "  rows = 2", "  tokens = 100", "  grouping = 'isf'")
    assert made([1, 1], [0, 0], 2).gin == lines


@given(st.floats(0.1, 5000), st.integers(1, 300))
def test_no_near_number_of_rows_is_divided_by_more_devices(needed, devices):
    rows = suited_rows(needed, devices)
    near = [other for other in range(1, 5400) if abs(other - needed) <= needed * MOST_OTHER_ROWS + 1e-9]
    assert not near or rows in near
    assert all(math.gcd(other, devices) <= math.gcd(rows, devices) for other in near)
    alike = [other for other in near if math.gcd(other, devices) == math.gcd(rows, devices)]
    assert all(abs(rows - needed) <= abs(other - needed) for other in alike)
    assert near or rows == math.ceil(needed * (1 - MOST_OTHER_ROWS))
