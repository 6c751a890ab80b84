"""Post-balanced steps: the next samples of a random order, but for those that do not fit, in even and full rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.packing.grouping.algorithms import FirstFit
from data.packing.grouping.post_balanced import AHEAD_LEAST, AHEAD_SHARE, PostBalancedGroups
from tests.data.packing.grouping.draws import sized


@given(sized(), st.integers(1, 5), st.integers(0, 9))
@settings(max_examples=50)
def test_steps_take_the_next_samples_of_a_random_order_and_few_from_behind_them(drawn, rows, seed):
    sizes, capacity = drawn
    sizes = sizes[(sizes <= capacity).all(axis=1)]
    groups = [
        members.tolist() for members in PostBalancedGroups(rows=rows)(sizes, capacity, np.random.default_rng(seed))
    ]
    order = np.random.default_rng(seed).permutation(len(sizes)).tolist()
    while order:
        due = max(1, sum((np.cumsum(sizes[order], axis=0) <= rows * capacity).all(axis=1)))
        seen = order[: due + max(AHEAD_LEAST, int(AHEAD_SHARE * due))]
        step = groups[:rows]
        members = {member for group in step for member in group}
        assert members <= set(seen) and len(step) == min(rows, len(order))
        groups, order = groups[len(step) :], [sample for sample in order if sample not in members]
    assert not groups


@pytest.mark.parametrize("rows", [2, 8, 64])
def test_rows_are_as_full_as_those_of_first_fit_and_even(rows):
    """But for the last step of the samples."""
    random = np.random.default_rng(3)
    sizes, capacity = random.lognormal(6.5, 0.8, (1500, 1)).clip(40, 2048).round(), np.array([2048.0])
    fills = []
    for algorithm in (PostBalancedGroups(rows=rows), FirstFit()):
        groups = algorithm(sizes, capacity, random)
        sums = groups.sums(sizes)[: len(groups) // rows * rows - rows, 0].reshape(-1, rows)
        fills.append(sums.mean() / capacity[0])
        assert (sums.max(axis=1) / sums.mean(axis=1)).mean() < 1.02
    assert fills[0] > fills[1] - 0.02


def test_rows_limited_by_images_are_fuller_and_more_even_than_those_of_first_fit():
    """Of sizes like the quickstart's: a picture of 64 patches with a long text, or an image to generate."""
    random = np.random.default_rng(3)
    has_picture = random.random(3000) < 0.125
    tokens = np.where(has_picture, random.normal(100, 40, 3000).clip(36, 216).round(), 6)
    sizes = np.stack([tokens, 64 * has_picture, ~has_picture, np.ones(3000)], axis=1)
    capacity = np.array([320.0, 128, 12, 16])
    images, unevenness = [], []
    for algorithm in (PostBalancedGroups(rows=8), FirstFit()):
        groups = algorithm(sizes, capacity, random)
        sums = groups.sums(sizes)[: len(groups) // 8 * 8 - 8]
        tokens = sums[:, 0].reshape(-1, 8)
        images.append(sums[:, 2].mean())
        unevenness.append((tokens.max(axis=1) / tokens.mean(axis=1)).mean())
    assert images[0] > images[1]
    assert unevenness[0] < 1.15 < unevenness[1]


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
