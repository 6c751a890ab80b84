"""Rows move, none is lost; groups are as equal as brute force can make them, or nearly; microbatches fill intervals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.reordering import balance, microbatch_order, reorder

SIZES = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=8)


def heaviest(sizes, groups):
    return max(sizes[list(group)].sum() for group in groups)


def divisions(rows, groups):
    """All ways to divide rows into equal groups."""
    if groups == 1:
        yield (tuple(rows),)
        return
    each, first = len(rows) // groups, rows[0]
    for others in itertools.combinations(rows[1:], each - 1):
        group = (first, *others)
        for rest in divisions([row for row in rows if row not in group], groups - 1):
            yield (group, *rest)


@given(st.integers(1, 4), st.integers(1, 3), st.data())
@settings(max_examples=25, deadline=None)
def test_groups_are_equal_in_number_and_nearly_in_size(groups, each, draw):
    numbers = st.lists(st.integers(1, 50), min_size=groups * each, max_size=groups * each)
    sizes = np.array(draw.draw(numbers), float)
    found = balance(sizes, groups)
    assert found.shape == (groups, each)
    assert sorted(found.ravel()) == list(range(groups * each))
    assert (np.diff(sizes[found], axis=1) <= 0).all()
    best = min(heaviest(sizes, division) for division in divisions(list(range(groups * each)), groups))
    assert heaviest(sizes, found) <= best * 4 / 3 + 1e-9


def test_an_exchange_mends_what_the_greedy_order_gets_wrong():
    sizes = np.array([8.0, 7.0, 6.0, 5.0, 4.0, 0.0])  # greedily 8 + 5 + 4 against 7 + 6 + 0
    assert heaviest(sizes, balance(sizes, 2)) == 15.0


def test_groups_of_unequal_number_are_refused():
    with pytest.raises(ValueError, match="7 rows cannot be divided into 2 groups"):
        balance(np.ones(7), 2)


@given(SIZES, st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_microbatches_are_kept_the_smallest_first_and_the_next_smallest_last(numbers, stages):
    forwards = np.array(numbers)
    order = microbatch_order(forwards, 2 * forwards, stages)
    assert sorted(order) == list(range(len(forwards)))
    ascending = np.sort(forwards)
    assert forwards[order[0]] == ascending[0]
    last = min(stages - 1, len(forwards) - 1)
    np.testing.assert_array_equal(np.sort(forwards[order[len(order) - last :]]), ascending[1 : 1 + last])


def test_intervals_are_filled_by_what_comes_closest():
    forwards = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    intervals = np.array([13.0, 0, 0, 9.0, 4.0, 0, 0, 0, 0])
    # First 1, last 3 and 2. Its interval of 13: 6 + 7. Those of 6 and 7, of nothing: the smallest left. That of 4: 9.
    np.testing.assert_array_equal(forwards[microbatch_order(forwards, intervals, 3)], [1, 6, 7, 4, 5, 9, 8, 3, 2])


def test_the_figure_has_fewer_microbatches_than_the_loop_asks_for():
    order = microbatch_order(np.arange(1.0, 7.0), np.full(6, 10.0), 4)
    np.testing.assert_array_equal(order, [0, 4, 5, 3, 2, 1])


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_instances_and_microbatches_get_more_equal_work(instances):
    sizes = np.random.default_rng(0).lognormal(0, 1, 48)
    order = reorder(sizes, sizes / 3, sizes, microbatches=12, instances=instances, stages=3)
    assert sorted(order) == list(range(48))
    before, after = (each.reshape(12, instances, -1).sum(axis=2) for each in (sizes, sizes[order]))
    assert after.sum(axis=0).max() <= before.sum(axis=0).max() * (1 + 1e-12)
    assert after.max(axis=1).sum() <= before.max(axis=1).sum() * (1 + 1e-12)
    assert after.max() <= before.max()
