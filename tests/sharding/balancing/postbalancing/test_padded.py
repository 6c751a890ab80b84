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
def test_it_is_the_optimum(lengths, instances, equal, square_weight):
    def cost(held):
        return padded.padded_cost(held, square_weight)

    instance = padded.balance_padded(lengths, instances, equal, square_weight)
    assert largest_cost(lengths, instance, instances, cost) == least_cost(lengths, instances, cost, equal)


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9), st.booleans())
def test_every_item_has_an_instance_and_counts_are_equal_where_asked(lengths, instances, equal):
    instance = padded.balance_padded(lengths, instances, equal)
    assert instance.shape == lengths.shape
    assert not len(instance) or 0 <= instance.min() <= instance.max() < instances
    assert not equal or spread(instance, instances) <= 1


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9))
def test_it_is_what_trying_every_bound_finds(lengths, instances):
    """The printed Algorithm 2, with the longest length in the bounds."""
    ascending = sorted(lengths.tolist())

    def batches(bound):
        count, held = 1, 0
        for length in ascending:
            if (held + 1) * length > bound:
                count, held = count + 1, 0
            held += 1
        return count

    low, high = max(ascending, default=0), max(ascending, default=0) * (len(ascending) // instances + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if batches(middle) <= instances else (middle + 1, high)
    assert largest_cost(lengths, padded.balance_padded(lengths, instances), instances, padded.padded_cost) == low


def test_like_lengths_lie_together():
    lengths = np.array([100, 1, 100, 1, 1, 1, 1, 1])
    instance = padded.balance_padded(lengths, 3)
    assert largest_cost(lengths, instance, 3, padded.padded_cost) == 100
    assert instance[0] != instance[2]


def test_what_cannot_be_balanced_is_refused():
    with pytest.raises(ValueError, match="0 instances"):
        padded.balance_padded(np.array([1]), 0)
