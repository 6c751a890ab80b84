"""Groups have equally many rows, and nearly the largest sum that brute force finds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.reordering.intra_microbatch import balanced_groups, balanced_microbatches, balanced_replicas


def heaviest(sizes, groups):
    return max(sizes[list(group)].sum() for group in groups)


def divisions(rows, groups):
    """All ways to divide rows into equal groups."""
    if groups == 1:
        yield (tuple(rows),)
        return
    size, first = len(rows) // groups, rows[0]
    for others in itertools.combinations(rows[1:], size - 1):
        group = (first, *others)
        for rest in divisions([row for row in rows if row not in group], groups - 1):
            yield (group, *rest)


@given(st.integers(1, 4), st.integers(1, 3), st.data())
@settings(max_examples=25, deadline=None)
def test_groups_are_equal_in_number_and_nearly_in_size(groups, size, draw):
    numbers = st.lists(st.integers(0, 50), min_size=groups * size, max_size=groups * size)
    sizes = np.array(draw.draw(numbers), float)
    rows = balanced_groups(sizes, groups)
    assert rows.shape == (groups, size)
    assert sorted(rows.ravel()) == list(range(groups * size))
    assert (np.diff(sizes[rows], axis=1) >= 0).all()
    best = min(heaviest(sizes, division) for division in divisions(list(range(groups * size)), groups))
    assert heaviest(sizes, rows) <= best * 4 / 3 + 1e-9


def test_swaps_improve_the_greedy_division():
    sizes = np.array([8.0, 7.0, 6.0, 5.0, 4.0, 0.0])  # greedily 8 + 5 + 4 against 7 + 6 + 0
    assert heaviest(sizes, balanced_groups(sizes, 2)) == 15.0


def test_a_global_batch_is_balanced_to_a_thousandth():
    sizes = np.random.default_rng(0).lognormal(0, 1, 1920)
    sums = sizes[balanced_groups(sizes, 30)].sum(axis=1)
    assert sums.max() <= sums.mean() * 1.001


def test_every_replica_gets_its_group_in_every_microbatch():
    sizes = np.random.default_rng(0).lognormal(0, 1, 48)
    by_replica = balanced_replicas(sizes, 6, 4).reshape(6, 4, 2).transpose(1, 0, 2).reshape(4, 12)
    np.testing.assert_array_equal(by_replica, balanced_groups(sizes, 4))


def test_every_microbatch_gets_equal_work_in_the_order_given():
    sizes = np.random.default_rng(0).lognormal(0, 1, 240)
    microbatches = balanced_microbatches(sizes, 12).reshape(12, 20)
    assert sorted(microbatches.ravel()) == list(range(240))
    assert (np.diff(microbatches, axis=1) > 0).all() and (np.diff(microbatches[:, 0]) > 0).all()
    sums = sizes[microbatches].sum(axis=1)
    assert sums.max() <= 1.001 * sums.mean() < sizes.reshape(12, 20).sum(axis=1).max()


def test_groups_of_unequal_number_are_refused():
    with pytest.raises(ValueError, match="7 rows cannot be divided into 2 groups"):
        balanced_groups(np.ones(7), 2)
