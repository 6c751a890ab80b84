import numpy as np
import pytest
from hypothesis import given, settings

from data.packing.grouping.algorithms import RandomGroups
from data.packing.grouping.comparison import (
    PADDED_BASELINES,
    GroupingSettings,
    compare_grouping_policies,
    dist_ratio,
    pad_ratio,
)
from data.packing.grouping.grouping_policies import GROUPING_POLICIES
from data.packing.grouping.groups import Groups
from tests.data.packing.grouping.draws import sized

SIZES = np.array([[1.0, 1.0], [3.0, 1.0]] * 4)  # tokens and patches
FOR_STEPS = ("device_group", "post_balanced")  # whose rows are made for the rows of a step
LIMITS = np.array([6.0, 4.0, 2.0])  # and samples: two fit any row


def outcomes(sizes=SIZES, limits=LIMITS, rows=2, window=8):
    settings = GroupingSettings(
        modalities=("tokens", "patches"), flops_per_unit=(1.0, 2.0), rows=rows, window=window, seed=0
    )
    results = compare_grouping_policies(sizes, limits, settings)
    assert [result.policy for result in results] == [*PADDED_BASELINES, *GROUPING_POLICIES]
    return {(result.policy, result.padded): result for result in results}


def test_padding_of_two_samples_per_row():
    for (policy, padded), result in outcomes().items():
        waits = policy in FOR_STEPS and not padded  # the step that was dealt last, with two rows
        assert (result.rows, result.samples_per_row, result.max_samples) == (2 if waits else 4, 2.0, 2)
        if not padded and not waits:
            assert result.padding_share == {"tokens": pytest.approx(1 / 3), "patches": 0.5}
            assert result.pad_ratio == {"tokens": 0.0, "patches": 0.0}
            assert result.wasted_flops_share == pytest.approx(1 - (4 + 2 * 2) / (6 + 2 * 4))


def test_batches_of_equal_samples_have_no_padding_but_do_not_fill_the_largest_shape():
    ordered = outcomes()["sorted", True]
    assert ordered.pad_ratio == {"tokens": 0.0, "patches": 0.0}
    assert ordered.padding_share == {"tokens": pytest.approx(1 / 3), "patches": 0.0}
    assert ordered.wasted_flops_share == pytest.approx(1 - (4 + 2 * 2) / (6 + 2 * 2))


def test_equal_samples_across_devices_leave_none_idle():
    for padded in (True, False):
        assert outcomes()["device_group", padded].dist_ratio == {"tokens": 0.0, "patches": 0.0}


def test_ratios_of_one_step_are_those_of_the_paper():
    # A row takes one sample, so the step's two instances have 1 and 3 tokens, and the batches are not padded.
    both = outcomes(SIZES[:2], np.array([3.0, 4.0, 1.0]))
    for (policy, _), result in both.items():
        if policy not in FOR_STEPS:  # whose only step waits for more samples
            assert result.dist_ratio == {"tokens": pytest.approx((3 - 1) / (3 * 2)), "patches": 0.0}
            assert result.pad_ratio == {"tokens": 0.0, "patches": 0.0}
    # One row takes both, and pads the smaller by 2 of 6 tokens.
    assert outcomes(SIZES[:2], rows=1)["random", True].pad_ratio == {"tokens": pytest.approx(1 / 3), "patches": 0.0}


def test_rows_that_fill_no_step_are_carried_and_dropped_at_the_end():
    # A window of four steps is larger, and takes all eight samples.
    assert outcomes(window=4) == outcomes(window=8)
    # 64 samples in windows of 28, 28 and 8: 14 pairs are 4 steps of 3 rows and 2 rows, which make 16 of the next 14.
    three = outcomes(np.tile(SIZES, (8, 1)), rows=3, window=28)
    assert {result.rows for (policy, _), result in three.items() if policy not in FOR_STEPS} == {12 + 15 + 3}
    few = outcomes(SIZES[:4], rows=3)
    none = [result for (policy, padded), result in few.items() if not padded and policy not in FOR_STEPS]
    assert {(result.rows, result.wasted_flops_share) for result in none} == {(0, None)}
    assert all(result.pad_ratio == result.dist_ratio == result.padding_share == {} for result in none)


def test_rows_that_are_not_well_filled_wait():
    # A row holds four samples; the fifth would have one of its own, and use a quarter of its patches.
    assert outcomes(SIZES[[0] * 5], np.array([6.0, 4.0, 4.0]), rows=1)["first_fit", False].rows == 1


def test_no_samples_make_no_rows():
    assert {result.rows for result in outcomes(SIZES[:0]).values()} == {0}


def test_ratios_of_an_example_computed_by_hand():
    sizes = np.array([[4.0, 0.0], [2.0, 0.0], [3.0, 0.0], [1.0, 5.0]])
    groups = Groups.from_lists([[0, 1, 2], [3]])
    np.testing.assert_allclose(pad_ratio(groups, sizes), [[(0 + 2 + 1) / 12, 0], [0, 0]])
    np.testing.assert_allclose(dist_ratio(groups.sums(sizes), np.array([[0, 1]])), [[8 / 18, 5 / 10]])


@given(sized())
@settings(deadline=None, max_examples=20)
def test_ratios_are_those_of_the_equations(drawn):
    sizes, capacity = drawn
    groups = RandomGroups(samples=3)(sizes, capacity, np.random.default_rng(0))
    for ratios, members in zip(pad_ratio(groups, sizes), groups, strict=True):
        for modality, ratio in enumerate(ratios):
            units = sizes[members, modality].tolist()
            padding = sum(max(units) - size for size in units)
            assert ratio == pytest.approx(padding / (max(units) * len(units)) if max(units) else 0, abs=1e-12)
    steps = np.arange(len(groups) // 2 * 2).reshape(-1, 2)
    totals = groups.sums(sizes)
    for ratios, step in zip(dist_ratio(totals, steps), steps, strict=True):
        for modality, ratio in enumerate(ratios):
            units = totals[step, modality].tolist()
            idle = sum(max(units) - size for size in units)
            assert ratio == pytest.approx(idle / (max(units) * len(units)) if max(units) else 0, abs=1e-12)
