"""Where a window ends: at the content of four steps, and at the least number of samples."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.comparison import GroupingSettings, packed_groups
from data.packing.grouping.grouping_policies import GROUPING_POLICIES
from data.packing.grouping.windows import WINDOW_STEPS, WindowRule

RULE = WindowRule(limits=np.array([100.0, 10.0, 5.0]), rows=2, least=7)  # tokens, images, samples


def test_a_window_has_four_steps_of_some_quantity():
    assert WINDOW_STEPS == 4
    assert not RULE.is_full(7, np.array([799, 79, 39]))
    assert RULE.is_full(7, np.array([800, 0, 0])) and RULE.is_full(7, np.array([7, 80, 0]))
    assert RULE.is_full(7, np.array([7, 0, 40]))


def test_a_window_has_the_least_number_of_samples():
    assert not RULE.is_full(6, np.array([10_000, 1_000, 6])) and RULE.is_full(7, np.array([10_000, 1_000, 7]))


def test_a_window_of_unusable_samples_ends_at_as_many_as_would_fill_it():
    assert RULE.most == 40
    assert not RULE.is_full(39, np.zeros(3)) and RULE.is_full(40, np.zeros(3))
    assert WindowRule(limits=RULE.limits, rows=2, least=41).most == 41


def test_rows_of_any_number_of_samples_end_a_window_by_the_other_quantities():
    rule = WindowRule(limits=np.array([100.0, np.inf]), rows=2, least=7)
    assert not rule.is_full(10_000, np.array([799, 10_000])) and rule.is_full(7, np.array([800, 7]))


@given(st.sampled_from(sorted(GROUPING_POLICIES)), st.integers(1, 4), st.integers(1, 40), st.integers(0, 9), st.data())
@settings(max_examples=25, deadline=None)
def test_what_is_carried_is_less_than_two_steps_of_rows(policy, rows, window, seed, drawn):
    """Then a window of four steps makes at least two, whatever its samples are."""
    limits = np.array([100.0, drawn.draw(st.integers(1, 8))])
    sizes = np.random.default_rng(seed).integers(1, 101, (drawn.draw(st.integers(0, 200)), 1)).astype(float)
    settings = GroupingSettings(modalities=("tokens",), flops_per_unit=(1.0,), rows=rows, window=window, seed=seed)
    packed = packed_groups(policy, sizes, limits, settings)
    assert len(packed) % rows == 0 and (packed.sums(sizes) <= limits[:1]).all() and packed.lengths.max(initial=0) <= 8
    assert len(np.unique(packed.members)) == len(packed.members)
    left = np.setdiff1d(np.arange(len(sizes)), packed.members)
    assert len(left) < max(4 * rows * limits[1] + 1, window)
    assert len(packed) >= 2 * rows or sizes.sum() < 400 * rows and len(sizes) < 4 * rows * limits[1]
