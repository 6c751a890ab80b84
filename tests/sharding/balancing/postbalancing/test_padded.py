"""Balancing with padding: the optimum, in whole and in other costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing import padded
from tests.sharding.balancing.postbalancing.brute_force import largest_cost, least_cost, spread
from tests.sharding.balancing.postbalancing.lengths import few, many


@settings(max_examples=30, deadline=None)
@given(few, st.integers(1, 3), st.booleans(), st.sampled_from([0.0, 0.25]))
def test_it_is_the_optimum(lengths, replicas, equal, quadratic_cost_weight):
    def cost(held):
        return padded.padded_cost(held, quadratic_cost_weight)

    replica_of = padded.balance_padded(lengths, replicas, equal, quadratic_cost_weight)
    assert largest_cost(lengths, replica_of, replicas, cost) == least_cost(lengths, replicas, cost, equal)


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9), st.booleans())
def test_every_item_has_a_replica_and_counts_are_equal_where_asked(lengths, replicas, equal):
    replica_of = padded.balance_padded(lengths, replicas, equal)
    assert replica_of.shape == lengths.shape
    assert not len(replica_of) or 0 <= replica_of.min() <= replica_of.max() < replicas
    assert not equal or spread(replica_of, replicas) <= 1


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9))
def test_it_is_as_good_as_bisection_over_whole_bounds(lengths, replicas):
    """The printed Algorithm 2, with the longest length in the bounds."""
    ascending = sorted(lengths.tolist())

    def batches(bound):
        count, held = 1, 0
        for length in ascending:
            if (held + 1) * length > bound:
                count, held = count + 1, 0
            held += 1
        return count

    low, high = max(ascending, default=0), max(ascending, default=0) * (len(ascending) // replicas + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if batches(middle) <= replicas else (middle + 1, high)
    assert largest_cost(lengths, padded.balance_padded(lengths, replicas), replicas, padded.padded_cost) == low


def test_similar_lengths_share_a_replica():
    lengths = np.array([100, 1, 100, 1, 1, 1, 1, 1])
    replica_of = padded.balance_padded(lengths, 3)
    assert largest_cost(lengths, replica_of, 3, padded.padded_cost) == 100
    assert replica_of[0] != replica_of[2]


def test_lengths_that_cannot_be_balanced_are_refused():
    with pytest.raises(ValueError, match="0 replicas"):
        padded.balance_padded(np.array([1]), 0)
