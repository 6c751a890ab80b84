import numpy as np
import pytest

from data.packing.grouping.comparison import PADDED, GroupingSettings, compare_grouping_policies
from data.packing.grouping.grouping_policies import GROUPING_POLICIES

SIZES = np.array([[1.0, 1.0], [3.0, 1.0]] * 4)  # tokens and patches
LIMITS = np.array([6.0, 4.0, 2.0])  # and samples: two fit any row


def outcomes(sizes=SIZES, limits=LIMITS, rows=2, window=8):
    found = compare_grouping_policies(
        sizes, limits, GroupingSettings(("tokens", "patches"), (1.0, 2.0), rows, window, seed=0)
    )
    assert [each.policy for each in found] == [*PADDED, *GROUPING_POLICIES]
    return {(each.policy, each.padded): each for each in found}


def test_two_samples_a_row_leave_a_third_of_the_tokens_and_half_of_the_patches():
    for (_, padded), each in outcomes().items():
        assert (each.rows, each.samples_per_row, each.max_samples) == (4, 2.0, 2)
        if not padded:
            assert each.padding_share == {"tokens": pytest.approx(1 / 3), "patches": 0.5}
            assert each.pad_ratio == {"tokens": 0.0, "patches": 0.0}
            assert each.wasted_flops_share == pytest.approx(1 - (4 + 2 * 2) / (6 + 2 * 4))


def test_batches_of_like_samples_have_no_padding_and_yet_do_not_fill_the_shape_of_the_largest():
    ordered = outcomes()["sorted", True]
    assert ordered.pad_ratio == {"tokens": 0.0, "patches": 0.0}
    assert ordered.padding_share == {"tokens": pytest.approx(1 / 3), "patches": 0.0}
    assert ordered.wasted_flops_share == pytest.approx(1 - (4 + 2 * 2) / (6 + 2 * 2))


def test_like_samples_across_devices_leave_none_idle():
    for padded in (True, False):
        assert outcomes()["device_group", padded].dist_ratio == {"tokens": 0.0, "patches": 0.0}


def test_the_ratios_of_one_step_are_those_of_the_paper():
    # A row takes one sample, so the step's two instances have 1 and 3 tokens, and the batches are not padded.
    both = outcomes(SIZES[:2], np.array([3.0, 4.0, 1.0]))
    for (policy, _), each in both.items():
        if policy != "device_group":
            assert each.dist_ratio == {"tokens": pytest.approx((3 - 1) / (3 * 2)), "patches": 0.0}
            assert each.pad_ratio == {"tokens": 0.0, "patches": 0.0}
    # One row takes both, and pads the smaller by 2 of 6 tokens.
    assert outcomes(SIZES[:2], rows=1)["random", True].pad_ratio == {"tokens": pytest.approx(1 / 3), "patches": 0.0}


def test_rows_that_fill_no_step_wait_for_the_next_window_and_at_the_end_do_not_count():
    assert {each.rows for each in outcomes(window=4).values()} == {4}
    # Steps of three rows: a window's two pairs fill none, both windows' four fill one. The device-group's close sooner.
    three = [each for (policy, _), each in outcomes(rows=3, window=4).items() if policy != "device_group"]
    assert {each.rows for each in three} == {3}
    few = outcomes(SIZES[:4], rows=3)
    none = [each for (policy, padded), each in few.items() if not padded and policy != "device_group"]
    assert {(each.rows, each.wasted_flops_share) for each in none} == {(0, None)}
    assert all(each.pad_ratio == each.dist_ratio == each.padding_share == {} for each in none)


def test_a_row_that_is_not_well_filled_waits():
    # A row holds four samples; the fifth would have one of its own, and use a quarter of its patches.
    assert outcomes(SIZES[[0] * 5], np.array([6.0, 4.0, 4.0]), rows=1)["first_fit", False].rows == 1


def test_no_sample_at_all_is_no_row():
    assert {each.rows for each in outcomes(SIZES[:0]).values()} == {0}
