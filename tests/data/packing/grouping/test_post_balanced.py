"""Post-balanced steps: the next samples of a random order, dealt evenly over the rows, as many as these hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.packing.grouping.post_balanced import PostBalancedGroups
from tests.data.packing.grouping.draws import sized


def drawn_order(samples, seed):
    """The order in which the algorithm takes samples."""
    return np.random.default_rng(seed).permutation(samples).tolist()


@given(sized(), st.integers(1, 5), st.integers(0, 9))
@settings(max_examples=50)
def test_steps_are_runs_of_a_random_order(drawn, rows, seed):
    sizes, capacity = drawn
    sizes = sizes[(sizes <= capacity).all(axis=1)]
    groups = [
        members.tolist() for members in PostBalancedGroups(rows=rows)(sizes, capacity, np.random.default_rng(seed))
    ]
    order = drawn_order(np.arange(len(sizes)), seed)
    while order:
        step = groups[:rows]
        members = sorted(member for group in step for member in group)
        assert members == sorted(order[: len(members)]) and len(members) >= min(rows, len(order))
        groups, order = groups[len(step) :], order[len(members) :]
    assert not groups


def test_rows_of_a_step_are_even_and_full():
    sizes = np.random.default_rng(0).lognormal(4.0, 0.8, (4000, 1)).clip(max=1000).round()
    groups = PostBalancedGroups(rows=8)(sizes, np.array([4000.0]), np.random.default_rng(1))
    whole = len(groups) // 8 * 8 - 8
    sums = groups.sums(sizes)[:whole].reshape(-1, 8)
    assert len(sums) > 5
    assert (sums.max(axis=1) - sums.min(axis=1) <= 1).all()  # longest first, then swaps: even to a token
    assert sums.mean() > 0.95 * 4000


def test_a_capacity_of_another_modality_is_kept():
    random = np.random.default_rng(0)
    sizes = np.stack([random.integers(1, 20, 400), np.where(random.random(400) < 0.3, 8, 0)], axis=1).astype(float)
    groups = PostBalancedGroups(rows=4)(sizes, np.array([200.0, 24.0]), random)
    assert (groups.sums(sizes) <= [200, 24]).all()
    assert (groups.sums(sizes)[:, 1] == 24).mean() > 0.5  # limited by it, and nearly as full as can be


def test_a_step_needs_a_row():
    with pytest.raises(DataError, match="steps of 0 groups"):
        PostBalancedGroups(rows=0)
