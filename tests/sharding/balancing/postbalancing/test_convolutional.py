"""Balancing where attention alone is padded: against Algorithm 5, runs and the optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing import convolutional, padded, unpadded
from tests.sharding.balancing.postbalancing.brute_force import largest_cost, least_cost
from tests.sharding.balancing.postbalancing.lengths import few, many, weights


def weighted(quadratic_cost_weight):
    return lambda held: convolutional.convolutional_cost(held, quadratic_cost_weight)


@settings(max_examples=30, deadline=None)
@given(few, st.integers(1, 3), weights)
def test_it_is_near_the_optimum(lengths, replicas, quadratic_cost_weight):
    cost = weighted(quadratic_cost_weight)
    found = largest_cost(
        lengths, convolutional.balance_convolutional(lengths, replicas, quadratic_cost_weight), replicas, cost
    )
    least = least_cost(lengths, replicas, cost)
    assert least <= found * (1 + 1e-9)
    assert found <= 4 / 3 * least + 1e-9


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9), weights)
def test_no_worse_than_the_papers_algorithm(lengths, replicas, quadratic_cost_weight):
    cost, descending = weighted(quadratic_cost_weight), np.sort(lengths)[::-1]
    replica_of = convolutional.balance_convolutional(lengths, replicas, quadratic_cost_weight)
    assert replica_of.shape == lengths.shape
    paper = largest_cost(descending, convolutional.separate_long_sequences(descending, replicas), replicas, cost)
    assert largest_cost(lengths, replica_of, replicas, cost) <= paper * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9))
def test_long_sequences_are_in_padded_batches_within_the_bound(lengths, replicas):
    descending = np.sort(lengths)[::-1]
    replica_of = convolutional.separate_long_sequences(descending, replicas)
    assert sorted(set(replica_of.tolist())) == list(range(len(set(replica_of.tolist()))))
    bound = (
        largest_cost(descending, unpadded.balance_unpadded(descending, replicas), replicas, unpadded.unpadded_cost)
        * 4
        / 3
    )
    assert not len(lengths) or padded.padded_cost(descending[:1]) <= bound


def test_where_squares_count_long_sequences_do_not_mix_with_short_ones():
    lengths = np.array([1000, 1000, *[10] * 200])
    replica_of = convolutional.balance_convolutional(lengths, 3, 1.0)
    assert replica_of[0] != replica_of[1]
    assert not set(replica_of[:2].tolist()) & set(replica_of[2:].tolist())


def test_without_squares_sums_are_level():
    lengths = np.random.default_rng(0).integers(1, 500, 300)
    found = largest_cost(lengths, convolutional.balance_convolutional(lengths, 8, 0.0), 8, weighted(0.0))
    assert found <= 1.01 * lengths.sum() / 8


def test_lengths_that_cannot_be_balanced_are_refused():
    with pytest.raises(ValueError, match="below 0"):
        convolutional.balance_convolutional(np.array([-1]), 1, 0.0)
