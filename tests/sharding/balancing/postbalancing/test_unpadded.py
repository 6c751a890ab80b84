"""Balancing sums: nothing lost, never worse than largest first, near the optimum, and at it with many items."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing import unpadded
from sharding.balancing.postbalancing.greedy import deal_equal_counts, largest_first
from tests.sharding.balancing.postbalancing.brute_force import largest_cost, least_cost, spread
from tests.sharding.balancing.postbalancing.lengths import few, many

skewed = st.builds(
    lambda seed, n: np.random.default_rng(seed).lognormal(6, 1, n).astype(int), st.integers(0, 99), st.integers(0, 200)
)


def item_by_item(descending, instances):
    """Algorithm 1 as printed: the largest sum."""
    heap = [0] * instances
    for length in descending.tolist():
        heapq.heapreplace(heap, heap[0] + length)
    return sorted(heap)


@settings(max_examples=40, deadline=None)
@given(many | skewed, st.integers(1, 9))
def test_largest_first_gives_the_sums_of_the_rule_item_by_item(lengths, instances):
    descending = np.sort(lengths)[::-1]
    instance, sums = largest_first(descending, np.zeros(instances, int))
    assert sorted(sums.tolist()) == item_by_item(descending, instances)
    np.testing.assert_array_equal(np.bincount(instance, weights=descending, minlength=instances), sums)


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9))
def test_rows_give_equal_counts(lengths, instances):
    assert spread(deal_equal_counts(np.sort(lengths)[::-1], instances), instances) <= 1


@settings(max_examples=40, deadline=None)
@given(many | skewed, st.integers(1, 9), st.booleans())
def test_every_item_has_an_instance_and_counts_are_equal_where_asked(lengths, instances, equal):
    instance = unpadded.balance_unpadded(lengths, instances, equal)
    assert instance.shape == lengths.shape
    assert not len(instance) or 0 <= instance.min() <= instance.max() < instances
    assert not equal or spread(instance, instances) <= 1


@settings(max_examples=40, deadline=None)
@given(many | skewed, st.integers(1, 9))
def test_never_worse_than_its_start(lengths, instances):
    descending = np.sort(lengths)[::-1]
    found = largest_cost(lengths, unpadded.balance_unpadded(lengths, instances), instances, unpadded.unpadded_cost)
    assert found <= item_by_item(descending, instances)[-1]
    found = largest_cost(
        lengths, unpadded.balance_unpadded(lengths, instances, True), instances, unpadded.unpadded_cost
    )
    assert found <= largest_cost(
        descending, deal_equal_counts(descending, instances), instances, unpadded.unpadded_cost
    )


@settings(max_examples=30, deadline=None)
@given(few, st.integers(1, 3))
def test_within_the_bound_of_the_optimum(lengths, instances):
    found = largest_cost(lengths, unpadded.balance_unpadded(lengths, instances), instances, unpadded.unpadded_cost)
    assert found <= (4 / 3 - 1 / (3 * instances)) * least_cost(lengths, instances, unpadded.unpadded_cost)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(("n", "instances"), [(4096, 64), (4000, 64), (2560, 128), (640, 2)])
def test_at_the_optimum_with_many_items(n, instances, equal):
    lengths = np.random.default_rng(1).lognormal(np.log(512), 1, n).clip(16, 8192).astype(int)
    found = largest_cost(
        lengths, unpadded.balance_unpadded(lengths, instances, equal), instances, unpadded.unpadded_cost
    )
    assert found == -(-int(lengths.sum()) // instances)


def test_empty_items_go_where_the_fewest_are():
    lengths = np.array([0, 9, 0, 3, 3, 3, 0, 0, 0, 0])
    instance = unpadded.balance_unpadded(lengths, 2)
    assert (
        sorted(np.bincount(instance, weights=lengths)) == [9, 12]
        or largest_cost(lengths, instance, 2, unpadded.unpadded_cost) == 9
    )
    assert spread(instance, 2) == 0


def test_one_instance_with_most_items_costs_no_wide_table():
    lengths = np.concatenate((np.full(50, 10**6), np.ones(20_000, int)))
    instance = unpadded.balance_unpadded(lengths, 51)
    assert largest_cost(lengths, instance, 51, unpadded.unpadded_cost) == 10**6


def test_what_cannot_be_balanced_is_refused():
    for lengths, instances, message in (
        ([1], 0, "0 instances"),
        ([3, -1], 2, "below 0"),
        ([1 << 51, 1 << 51], 2, "add up to"),
    ):
        with pytest.raises(ValueError, match=message):
            unpadded.balance_unpadded(np.array(lengths), instances)
