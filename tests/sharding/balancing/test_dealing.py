"""Dealing items to rows: nothing lost, nothing above the capacity, even sums."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.balancing.dealing import DealingError, DealtItems, deal_items, largest_cost


def check(dealt: DealtItems, lengths: np.ndarray, rows: int, capacity: int) -> np.ndarray:
    """Fails if two items overlap or one leaves its row; returns the filling of the rows."""
    filled = np.zeros((rows, capacity), int)
    for row, place, length in zip(dealt.rows, dealt.places, lengths, strict=True):
        assert 0 <= place <= capacity - length
        filled[row, place : place + length] += 1
    assert filled.max(initial=0) <= 1
    sums = filled.sum(axis=1)
    for row, total in enumerate(sums):  # side by side, in order
        assert filled[row, :total].all()
        assert (np.diff(dealt.places[dealt.rows == row]) > 0).all()
    return sums


@given(
    st.lists(st.integers(1, 12), max_size=40).map(np.array).map(lambda lengths: lengths.astype(int)),
    st.integers(1, 8),
    st.integers(1, 40),
)
def test_items_fit_or_a_capacity_that_suffices_is_named(lengths, rows, capacity):
    try:
        dealt = deal_items(lengths, rows, [capacity])
    except DealingError as error:
        named = error.sufficient
        assert named > capacity and named >= lengths.max()
        dealt, capacity = deal_items(lengths, rows, [named]), named
    check(dealt, lengths, rows, capacity)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60).map(np.array), st.integers(1, 6))
def test_rows_differ_by_the_longest_item_at_most(lengths, rows):
    dealt = deal_items(lengths, rows, [int(lengths.sum())])
    sums = check(dealt, lengths, rows, int(lengths.sum()))
    assert sums.max() - sums.min() <= lengths.max()


@given(
    st.lists(st.integers(1, 9), max_size=30).map(lambda lengths: np.array(lengths, int)),
    st.integers(1, 5),
    st.sets(st.integers(1, 40), min_size=1, max_size=4).map(sorted),
)
def test_of_several_capacities_the_smallest_that_holds_the_items_is_enough(lengths, rows, capacities):
    def fits(capacity: int) -> bool:
        try:
            deal_items(lengths, rows, [capacity])
        except DealingError:
            return False
        return True

    smallest = next(filter(fits, capacities), None)
    if smallest is None:
        with pytest.raises(DealingError):
            deal_items(lengths, rows, capacities)
    else:
        check(deal_items(lengths, rows, capacities), lengths, rows, smallest)


def test_where_even_sums_leave_no_room_rows_are_filled_first_fit():
    # 5, 5 and then 3, 3, 3 for two rows of 10: the even deal puts 5 + 3 in both, and the last 3 finds no room.
    lengths = np.array([5, 5, 3, 3, 3])
    dealt = deal_items(lengths, 2, [10])
    assert sorted(check(dealt, lengths, 2, 10)) == [9, 10]


def test_items_that_do_not_fit():
    with pytest.raises(DealingError, match=r"4 items do not fit into 2 rows of 5; rows of 6 hold them"):
        deal_items(np.full(4, 3), 2, [5])


@given(
    st.lists(st.integers(1, 12), max_size=40).map(lambda lengths: np.array(lengths, int)),
    st.integers(1, 8),
    st.sets(st.integers(1, 60), min_size=1, max_size=4).map(sorted),
    st.integers(1, 64).map(lambda eighths: eighths / 8),  # costs are exact
)
def test_dealt_by_cost_items_need_no_larger_capacity_and_the_costliest_row_costs_no_more(
    lengths, rows, capacities, quadratic_cost_weight
):
    def ends(dealt: DealtItems) -> int:
        return int((dealt.places + lengths).max(initial=0))

    try:
        linear = deal_items(lengths, rows, capacities)
    except DealingError as error:
        with pytest.raises(DealingError, match=str(error)):
            deal_items(lengths, rows, capacities, quadratic_cost_weight)
        return
    dealt = deal_items(lengths, rows, capacities, quadratic_cost_weight)
    capacity = next(capacity for capacity in capacities if capacity >= ends(linear))
    check(dealt, lengths, rows, capacity)
    by_cost, by_length = (
        max(
            float((held + quadratic_cost_weight * held**2).sum())
            for held in (lengths[dealing.rows == row] for row in range(rows))
        )
        for dealing in (dealt, linear)
    )
    assert by_cost <= by_length
    assert by_cost == largest_cost(lengths, dealt.rows, quadratic_cost_weight)


def test_dealt_by_cost_the_costliest_row_is_the_cheapest_possible():
    # With w = 1, 8 costs 72, 4 costs 20 and 2 costs 6. By length, both rows get 12: 8 + 2 + 2 and 4 + 4 + 2 + 2.
    lengths, rows, weight = np.array([8, 4, 4, 2, 2, 2, 2]), 2, 1.0
    least = min(
        largest_cost(lengths, np.array(row_of), weight)
        for row_of in itertools.product(range(rows), repeat=len(lengths))
    )
    linear, dealt = (deal_items(lengths, rows, [24], cost_weight) for cost_weight in (0.0, weight))
    assert largest_cost(lengths, linear.rows, weight) == 84 and least == 72
    assert largest_cost(lengths, dealt.rows, weight) == least
    # Rows of 12 have no room for 8 beside nothing: all 24 cells are taken.
    assert largest_cost(lengths, deal_items(lengths, rows, [12], weight).rows, weight) == 84


def test_items_dealt_by_cost_keep_to_rows_with_room():
    # The costliest first: 6, then 3, 3 and 3 to the second row until it is full, the last one beside 6.
    lengths = np.array([6, 3, 3, 3, 1, 1, 1])
    by_cost = [deal_items(lengths, 2, [capacity], 1.0) for capacity in (12, 9)]
    assert [sorted(check(dealing, lengths, 2, 12)) for dealing in by_cost] == [[6, 12], [9, 9]]
