"""Balancing sums: no item is lost, never worse than longest first, near the optimum, and at it with many items."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing import unpadded
from sharding.balancing.postbalancing.greedy import deal_equal_counts, largest_first
from tests.sharding.balancing.postbalancing.brute_force import largest_cost, least_cost, spread, total_length
from tests.sharding.balancing.postbalancing.lengths import few, many

skewed = st.builds(
    lambda seed, n: np.random.default_rng(seed).lognormal(6, 1, n).astype(int), st.integers(0, 99), st.integers(0, 200)
)


def item_by_item(descending, replicas):
    """Algorithm 1 as printed: the largest sum."""
    heap = [0] * replicas
    for length in descending.tolist():
        heapq.heapreplace(heap, heap[0] + length)
    return sorted(heap)


@settings(max_examples=40, deadline=None)
@given(many | skewed, st.integers(1, 9))
def test_largest_first_gives_the_sums_of_the_rule_item_by_item(lengths, replicas):
    descending = np.sort(lengths)[::-1]
    replica_of, sums = largest_first(descending, np.zeros(replicas, int))
    assert sorted(sums.tolist()) == item_by_item(descending, replicas)
    np.testing.assert_array_equal(np.bincount(replica_of, weights=descending, minlength=replicas), sums)


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9))
def test_dealing_gives_equal_counts(lengths, replicas):
    assert spread(deal_equal_counts(np.sort(lengths)[::-1], replicas), replicas) <= 1


@settings(max_examples=40, deadline=None)
@given(many | skewed, st.integers(1, 9), st.booleans())
def test_every_item_has_a_replica_and_counts_are_equal_where_asked(lengths, replicas, equal):
    replica_of = unpadded.balance_unpadded(lengths, replicas, equal)
    assert replica_of.shape == lengths.shape
    assert not len(replica_of) or 0 <= replica_of.min() <= replica_of.max() < replicas
    assert not equal or spread(replica_of, replicas) <= 1


@settings(max_examples=40, deadline=None)
@given(many | skewed, st.integers(1, 9))
def test_swaps_never_make_the_initial_assignment_worse(lengths, replicas):
    descending = np.sort(lengths)[::-1]
    cost = largest_cost(lengths, unpadded.balance_unpadded(lengths, replicas), replicas, total_length)
    assert cost <= item_by_item(descending, replicas)[-1]
    cost = largest_cost(lengths, unpadded.balance_unpadded(lengths, replicas, True), replicas, total_length)
    assert cost <= largest_cost(descending, deal_equal_counts(descending, replicas), replicas, total_length)


@settings(max_examples=30, deadline=None)
@given(few, st.integers(1, 3))
def test_within_the_bound_of_the_optimum(lengths, replicas):
    cost = largest_cost(lengths, unpadded.balance_unpadded(lengths, replicas), replicas, total_length)
    assert cost <= (4 / 3 - 1 / (3 * replicas)) * least_cost(lengths, replicas, total_length)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(("n", "replicas"), [(4096, 64), (4000, 64), (2560, 128), (640, 2)])
def test_at_the_optimum_with_many_items(n, replicas, equal):
    lengths = np.random.default_rng(1).lognormal(np.log(512), 1, n).clip(16, 8192).astype(int)
    cost = largest_cost(lengths, unpadded.balance_unpadded(lengths, replicas, equal), replicas, total_length)
    assert cost == -(-int(lengths.sum()) // replicas)


def test_empty_items_go_where_the_fewest_are():
    lengths = np.array([0, 9, 0, 3, 3, 3, 0, 0, 0, 0])
    replica_of = unpadded.balance_unpadded(lengths, 2)
    assert (
        sorted(np.bincount(replica_of, weights=lengths)) == [9, 12]
        or largest_cost(lengths, replica_of, 2, total_length) == 9
    )
    assert spread(replica_of, 2) == 0


def test_a_replica_with_most_items_needs_no_wide_table():
    lengths = np.concatenate((np.full(50, 10**6), np.ones(20_000, int)))
    replica_of = unpadded.balance_unpadded(lengths, 51)
    assert largest_cost(lengths, replica_of, 51, total_length) == 10**6


def test_lengths_that_cannot_be_balanced_are_refused():
    for lengths, replicas, message in (
        ([1], 0, "0 replicas"),
        ([3, -1], 2, "below 0"),
        ([1 << 51, 1 << 51], 2, "add up to"),
    ):
        with pytest.raises(ValueError, match=message):
            unpadded.balance_unpadded(np.array(lengths), replicas)
