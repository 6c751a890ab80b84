import dataclasses

import numpy as np
import pytest

from data.packing.grouping.comparison import GroupingSettings
from data.report.capacity_advice import (
    suggest_published_isf_capacity,
    suggest_row_capacity,
    suggest_searched_isf_capacity,
)

TEXT_AND_PICTURES = np.array([[100.0, 0.0], [20.0, 16.0]] * 100)
NAMES = ("tokens", "patches")
SETTING = GroupingSettings(NAMES, (1.0, 1.0), rows=4, window=1000, seed=0)


def test_published_isf_capacity_of_a_few_samples():
    found = suggest_published_isf_capacity(np.array([[1000.0, 2.0], [500.0, 1.0], [100.0, 5.0]]), NAMES)
    assert found.capacity == {"tokens": 1000.0, "patches": 5.0}  # 8 patches come with 1600 tokens
    assert found.threshold == {"tokens": 950.0, "patches": 5.0}  # 128 would be more than a twentieth
    assert (found.samples_per_group, found.padding_share, found.oversized) == (None, {}, 0.0)
    assert suggest_published_isf_capacity(np.array([[9000.0, 1.0]]), NAMES).threshold["tokens"] == 9000 - 128
    assert suggest_published_isf_capacity(np.zeros((3, 2)), NAMES) is None


def test_searched_isf_capacity_has_the_samples_or_a_reason():
    found = suggest_searched_isf_capacity(TEXT_AND_PICTURES, NAMES, (4, 4), 4.0, 0)
    assert 4 <= found.samples_per_group <= 5 and found.oversized == 0
    assert 240 <= found.capacity["tokens"] <= 480 and found.capacity["patches"] % 4 == 0
    assert "no capacity gives groups" in suggest_searched_isf_capacity(TEXT_AND_PICTURES, NAMES, (10**6, 10**6), 4.0, 0)


def test_larger_groups_are_searched_where_none_have_the_size():
    found = suggest_searched_isf_capacity(np.full((400, 2), [30.0, 1.0]), NAMES, (120, 4), 2.4, 0)
    assert found.samples_per_group == 4.0 and found.capacity == {"tokens": 120.0, "patches": 4.0}


def test_suggested_rows_are_filled_by_equal_samples():
    found = suggest_row_capacity(np.full((400, 2), [32.0, 4.0]), (8, 4), np.array([256.0, 64.0]), "isf", SETTING)
    assert found.capacity == {"tokens": 256, "patches": 32, "samples": 8}
    assert (found.samples_per_row, found.oversized) == (8.0, 0.0)
    assert found.wasted_flops_share == pytest.approx(0, abs=1e-12)
    assert found.dist_ratio == {"tokens": 0.0, "patches": 0.0}


def test_suggested_capacities_hold_the_largest_fitting_sample():
    sizes = np.concatenate([TEXT_AND_PICTURES, [[90.0, 64.0], [300.0, 400.0]]])
    found = suggest_row_capacity(sizes, (1, 16), np.array([256.0, 32.0]), "random", SETTING)
    assert found.capacity["patches"] >= 64 and found.capacity["patches"] % 16 == 0
    assert found.oversized == pytest.approx(1 / len(sizes))
    assert found.capacity["samples"] % 4 == 0 and found.samples_per_row <= found.capacity["samples"]


def test_the_start_is_kept_where_no_multiple_wastes_less():
    pictures = np.full((8, 2), [100.0, 37.0])
    only_patches = dataclasses.replace(SETTING, rows=1, flops_per_unit=(0.0, 1.0))
    found = suggest_row_capacity(pictures, (1, 64), np.array([256.0, 74.0]), "first_fit", only_patches)
    assert found.capacity["patches"] == 74 and found.wasted_flops_share == 0


def test_no_capacity_is_suggested_where_no_rows_are_formed():
    assert suggest_row_capacity(TEXT_AND_PICTURES, (1, 16), np.array([10.0, 32.0]), "isf", SETTING) is None
    assert suggest_row_capacity(TEXT_AND_PICTURES[:2], (1, 16), np.array([256.0, 32.0]), "isf", SETTING) is None
