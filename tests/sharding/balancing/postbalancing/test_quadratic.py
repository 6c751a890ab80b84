"""Balancing quadratic costs: level, or as level as a tolerance for the sums permits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing import quadratic, unpadded
from tests.sharding.balancing.postbalancing.brute_force import largest_cost, least_cost, spread
from tests.sharding.balancing.postbalancing.lengths import few, many, weights


def weighted(quadratic_cost_weight):
    return lambda held: quadratic.quadratic_cost(held, quadratic_cost_weight)


@settings(max_examples=30, deadline=None)
@given(few, st.integers(1, 3), weights)
def test_within_the_bound_of_the_optimum(lengths, replicas, quadratic_cost_weight):
    cost = weighted(quadratic_cost_weight)
    found = largest_cost(lengths, quadratic.balance_quadratic(lengths, replicas, quadratic_cost_weight), replicas, cost)
    bound = (4 / 3 - 1 / (3 * replicas)) * least_cost(lengths, replicas, cost)
    assert found <= bound * (1 + 1e-9)


@pytest.mark.parametrize("equal", [False, True])
def test_costs_are_level_with_many_items(equal):
    lengths = np.random.default_rng(1).lognormal(np.log(512), 1, 2048).clip(16, 8192).astype(int)
    replica_of = quadratic.balance_quadratic(lengths, 32, 1e-4, equal)
    cost = weighted(1e-4)
    assert largest_cost(lengths, replica_of, 32, cost) < 1.0005 * cost(lengths) / 32
    assert not equal or spread(replica_of, 32) == 0


@settings(max_examples=40, deadline=None)
@given(many, st.integers(1, 9), weights, st.integers(1, 2000))
def test_within_a_tolerance_it_is_no_worse_than_the_papers_algorithm(
    lengths, replicas, quadratic_cost_weight, tolerance
):
    cost, descending = weighted(quadratic_cost_weight), np.sort(lengths)[::-1]
    replica_of = quadratic.balance_quadratic_within(lengths, replicas, quadratic_cost_weight, tolerance)
    assert replica_of.shape == lengths.shape
    paper = quadratic.greedy_within(descending, replicas, tolerance)
    assert largest_cost(lengths, replica_of, replicas, cost) <= largest_cost(descending, paper, replicas, cost) * (
        1 + 1e-9
    )
    level = max(lengths.sum() / replicas, lengths.max(initial=0)) + tolerance
    sums = largest_cost(descending, paper, replicas, unpadded.unpadded_cost)
    assert largest_cost(lengths, replica_of, replicas, unpadded.unpadded_cost) <= max(level, sums)


def test_a_wider_tolerance_gives_more_level_costs():
    lengths = np.random.default_rng(1).lognormal(np.log(512), 1, 2048).clip(16, 8192).astype(int)
    cost = weighted(1e-3)
    costs = [
        largest_cost(lengths, quadratic.balance_quadratic_within(lengths, 32, 1e-3, tolerance), 32, cost)
        for tolerance in (10, 1000, 100_000)
    ]
    assert costs[0] > 1.02 * costs[1] > 1.02 * costs[2]
    assert costs[2] < 1.001 * cost(lengths) / 32


def test_a_tie_within_an_interval_goes_to_the_least_squares():
    # 6 and 3 + 3 are alike within 10; the squares 36 and 18 decide.
    assert quadratic.greedy_within(np.array([6, 3, 3, 2]), 2, 10).tolist() == [0, 1, 1, 1]


def test_lengths_that_cannot_be_balanced_are_refused():
    with pytest.raises(ValueError, match="tolerance is 0; it must be at least 1"):
        quadratic.balance_quadratic_within(np.array([1]), 1, 0.0, 0)
    with pytest.raises(ValueError, match="0 replicas"):
        quadratic.balance_quadratic(np.array([1]), 0, 0.0)
