import dataclasses

import gin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.data_config import DataConfig
from data.packing.grouping.comparison import GroupingSettings
from data.report.capacity_advice import (
    SuggestedIsfCapacity,
    suggest_published_isf_capacity,
    suggest_row_capacity,
    suggest_searched_isf_capacity,
)

TEXT_AND_PICTURES = np.array([[100.0, 0.0], [20.0, 16.0]] * 100)
NAMES = ("tokens", "patches")
SETTING = GroupingSettings(modalities=NAMES, flops_per_unit=(1.0, 1.0), rows=4, window=1000, seed=0)


def test_published_isf_capacity_of_a_few_samples():
    sizes = np.array([[1000.0, 2.0], [500.0, 1.0], [100.0, 5.0]])
    advice = suggest_published_isf_capacity(sizes, NAMES, (8, 1), 0)
    assert advice.capacity == {"tokens": 1000.0, "patches": 5.0}  # 8 patches come with 1600 tokens
    assert advice.threshold == {"tokens": 950.0, "patches": 5.0}  # 128 would be more than a twentieth
    assert (advice.samples_per_group, advice.max_samples, advice.oversized) == (1.0, 4, 0.0)  # or of one and two
    assert advice.padding_share == {"tokens": pytest.approx(7 / 15), "patches": pytest.approx(7 / 15)}
    large = suggest_published_isf_capacity(np.array([[9000.0, 1.0]]), NAMES, (8, 1), 0)
    assert large.threshold["tokens"] == 9000 - 128
    assert suggest_published_isf_capacity(np.zeros((3, 2)), NAMES, (1, 1), 0) is None


def test_published_isf_capacity_has_whole_images():
    sizes = np.array([[1000.0, 32.0], [500.0, 16.0], [100.0, 80.0]])
    advice = suggest_published_isf_capacity(sizes, NAMES, (8, 16), 0)
    assert advice.capacity == {"tokens": 1000.0, "patches": 80.0} == advice.threshold | {"tokens": 1000.0}
    assert advice.gin == (
        "data_config.DataConfig:",
        "  tokens = 1000",
        "  patches = 80",
        "  samples = 4",
        "  grouping = 'isf'",
        "  isf_thresholds = (('tokens', 950), ('patches', 80))",
    )


@given(st.integers(0, 99), st.integers(1, 40))
@settings(deadline=None, max_examples=20)
def test_suggested_isf_capacities_are_accepted_as_they_are_written(seed, images):
    random = np.random.default_rng(seed)
    sizes = np.stack([random.integers(1, 5000, 60), 4 * random.integers(0, images, 60)], axis=1) * 1.0
    modalities = ("tokens", "poses")  # the second is no setting of its own
    found = [
        suggest_published_isf_capacity(sizes, modalities, (8, 4), seed),
        suggest_searched_isf_capacity(sizes, modalities, (8, 4), 3.0, seed),
    ]
    for advice in found:
        if isinstance(advice, SuggestedIsfCapacity):
            header = "from __gin__ import dynamic_registration\nfrom data import data_config\n"
            gin.clear_config()
            gin.parse_config(header + "\n".join(advice.gin))
            config = gin.get_configurable(DataConfig)()
            assert dict(config.isf_thresholds) == advice.threshold and config.grouping == "isf"
            assert {name: config.capacity.units[name] for name in modalities} == advice.capacity


def test_searched_isf_capacity_has_the_samples_or_a_reason():
    advice = suggest_searched_isf_capacity(TEXT_AND_PICTURES, NAMES, (4, 4), 4.0, 0)
    assert 4 <= advice.samples_per_group <= 5 and advice.oversized == 0
    assert 240 <= advice.capacity["tokens"] <= 480 and advice.capacity["patches"] % 4 == 0
    assert "no capacity gives groups" in suggest_searched_isf_capacity(TEXT_AND_PICTURES, NAMES, (10**6, 10**6), 4.0, 0)


def test_larger_groups_are_searched_where_none_have_the_size():
    advice = suggest_searched_isf_capacity(np.full((400, 2), [30.0, 1.0]), NAMES, (120, 4), 2.4, 0)
    assert advice.samples_per_group == 4.0 and advice.capacity == {"tokens": 120.0, "patches": 4.0}


def test_suggested_rows_are_filled_by_equal_samples():
    advice = suggest_row_capacity(np.full((400, 2), [32.0, 4.0]), (8, 4), np.array([256.0, 64.0]), "isf", SETTING)
    assert advice.capacity == {"tokens": 256, "patches": 32, "samples": 8}
    assert (advice.samples_per_row, advice.oversized) == (8.0, 0.0)
    assert advice.wasted_flops_share == pytest.approx(0, abs=1e-12)
    assert advice.dist_ratio == {"tokens": 0.0, "patches": 0.0}


def test_suggested_capacities_hold_the_largest_fitting_sample():
    sizes = np.concatenate([TEXT_AND_PICTURES, [[90.0, 64.0], [300.0, 400.0]]])
    advice = suggest_row_capacity(sizes, (1, 16), np.array([256.0, 32.0]), "random", SETTING)
    assert advice.capacity["patches"] >= 64 and advice.capacity["patches"] % 16 == 0
    assert advice.oversized == pytest.approx(1 / len(sizes))
    assert advice.capacity["samples"] % 4 == 0 and advice.samples_per_row <= advice.capacity["samples"]


def test_the_start_is_kept_where_no_multiple_wastes_less():
    pictures = np.full((8, 2), [100.0, 37.0])
    only_patches = dataclasses.replace(SETTING, rows=1, flops_per_unit=(0.0, 1.0))
    advice = suggest_row_capacity(pictures, (1, 64), np.array([256.0, 74.0]), "first_fit", only_patches)
    assert advice.capacity["patches"] == 74 and advice.wasted_flops_share == 0


def test_no_capacity_is_suggested_where_no_rows_are_formed():
    assert suggest_row_capacity(TEXT_AND_PICTURES, (1, 16), np.array([10.0, 32.0]), "isf", SETTING) is None
    assert suggest_row_capacity(TEXT_AND_PICTURES[:2], (1, 16), np.array([256.0, 32.0]), "isf", SETTING) is None
