"""Balancing within a capacity: rows hold no more than that, none is left where it fits, and sums are near the least."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing.within_capacity import NO_ROW, balance_if_fitting, balance_within_capacity
from tests.sharding.balancing.postbalancing.brute_force import divisions

numbers = st.integers(0, 2**32 - 1)


def row_sums(sizes, row_of, rows):
    """Sums of the items that have a row, by row and quantity."""
    sums = np.zeros((rows, sizes.shape[1]))
    placed = row_of != NO_ROW
    np.add.at(sums, row_of[placed], sizes[placed])
    return sums


def drawn(seed, items, quantities, capacity):
    """Whole sizes, of which none exceeds the capacity; half of the items have none of the second quantity and so on."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, capacity + 1, (items, quantities))
    sizes[:, 1:] *= random.random((items, quantities - 1)) < 0.5
    return sizes.astype(float)


@given(numbers, st.integers(0, 60), st.integers(1, 3), st.integers(1, 6), st.integers(3, 40))
@settings(max_examples=60, deadline=None)
def test_rows_keep_the_capacity_and_use_all_rows(seed, items, quantities, rows, most):
    sizes = drawn(seed, items, quantities, most // 3)
    capacity = np.full(quantities, float(most))
    row_of = balance_within_capacity(sizes, capacity, rows, items)
    assert (row_sums(sizes, row_of, rows) <= capacity).all()
    assert len(np.unique(row_of[row_of != NO_ROW])) == min(rows, items)
    np.testing.assert_array_equal(balance_within_capacity(sizes, capacity, rows, items), row_of)


@given(numbers, st.integers(1, 40), st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_without_a_limit_sums_are_those_of_the_rule_without_capacity(seed, items, rows):
    sizes = drawn(seed, items, 1, 50)
    capacity = np.array([float(sizes.sum() + 1)])
    np.testing.assert_array_equal(
        balance_within_capacity(sizes, capacity, rows, items), balance_if_fitting(sizes, capacity, rows)
    )


@given(numbers, st.integers(2, 7), st.integers(2, 3))
@settings(max_examples=40, deadline=None)
def test_with_another_limit_the_fullest_row_is_near_the_least_possible(seed, items, rows):
    sizes = np.stack([drawn(seed, items, 1, 20)[:, 0] + 1, np.ones(items)], axis=1)
    capacity = np.array([200.0, -(-items // rows)])  # as many items in every row
    row_of = balance_within_capacity(sizes, capacity, rows, items)
    least = min(
        sums[:, 0].max()
        for sums in (row_sums(sizes, division, rows) for division in divisions(items, rows))
        if (sums <= capacity).all()
    )
    assert (row_of != NO_ROW).all()
    assert row_sums(sizes, row_of, rows)[:, 0].max() <= 4 / 3 * least  # the bound of longest first without that limit


def test_an_exchange_evens_rows_that_another_limit_makes_uneven():
    # Longest first: 10 and 4 and 3 beside 9 and 8, which evening out without the limit would mix.
    sizes = np.array([[10.0, 2], [9, 1], [8, 1], [4, 0], [3, 0]])
    row_of = balance_within_capacity(sizes, np.array([20.0, 2]), 2, 5)
    sums = row_sums(sizes, row_of, 2)
    assert sorted(sums.tolist()) == [[17, 2], [17, 2]]


@given(numbers, st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_no_item_is_left_out_that_would_add_to_a_row(seed, items, rows):
    """Of one quantity: no item that is left out fits in a row, as it is or in the place of a smaller one."""
    sizes, capacity = drawn(seed, items, 1, 20), np.array([30.0])
    row_of = balance_within_capacity(sizes, capacity, rows, items // 2)
    if balance_if_fitting(sizes[row_of != NO_ROW], capacity, rows) is not None:
        return  # rows were evened out after they were filled
    sums = row_sums(sizes, row_of, rows)[:, 0]
    for left in sizes[row_of == NO_ROW, 0]:
        for row, total in enumerate(sums):
            smaller = [0.0, *(size for size in sizes[row_of == row, 0] if size < left)]
            assert all(total - size + left > capacity for size in smaller if size < left)


def test_the_preferred_items_come_first():
    row_of = balance_within_capacity(np.array([[4.0], [3], [5], [5]]), np.array([5.0]), 2, 2)
    assert row_of[:2].tolist() == [NO_ROW, NO_ROW] and sorted(row_of[2:]) == [0, 1]  # the others fill the rows better
    row_of = balance_within_capacity(np.array([[5.0, 1], [3, 0], [5, 0], [5, 0]]), np.array([5.0, 1]), 2, 2)
    assert row_of[0] != NO_ROW  # has the picture, which no other item replaces
