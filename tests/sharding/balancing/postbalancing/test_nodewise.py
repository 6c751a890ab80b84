"""Node-wise placement against the integer program and against all placements."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.postbalancing import nodewise, unpadded
from sharding.balancing.postbalancing.nodewise_milp import solve_placement


@st.composite
def clusters(draw, most=12):
    per_node = draw(st.integers(1, 4))
    replicas = per_node * draw(st.integers(1, most // per_node))
    items = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    source, batch = rng.integers(0, replicas, (2, items))
    return nodewise.SentItems(rng.integers(0, 100, items), source, batch), replicas, per_node


def sampled(replicas, samples, seed=0):
    """The samples of every replica, balanced."""
    lengths = np.random.default_rng(seed).lognormal(6, 1, replicas * samples).astype(int)
    source = np.repeat(np.arange(replicas), samples)
    return nodewise.SentItems(lengths, source, unpadded.balance_unpadded(lengths, replicas))


def worst(items, hosts, per_node):
    lengths, source, batch = items
    return int(nodewise.inter_node_volume(lengths, source, hosts[batch], np.arange(len(hosts)) // per_node).max())


def test_inter_node_volume_counts_what_is_sent_to_other_nodes():
    lengths, source, target = np.array([5, 7, 11, 13]), np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3])
    sent = nodewise.inter_node_volume(lengths, source, target, np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(sent, [7, 11, 0, 0])


@settings(max_examples=25, deadline=None)
@given(clusters())
def test_every_replica_computes_one_batch(cluster):
    hosts = nodewise.place_batches(*cluster)
    assert sorted(hosts.tolist()) == list(range(cluster[1]))


@settings(max_examples=25, deadline=None)
@given(clusters())
def test_the_program_is_a_lower_bound_of_the_search(cluster):
    items, _, per_node = cluster
    volume = worst(items, nodewise.place_batches(*cluster), per_node)
    hosts, least = solve_placement(*cluster)
    optimum = worst(items, hosts, per_node)
    assert least == pytest.approx(optimum, abs=1e-4)
    assert volume >= optimum


@pytest.mark.parametrize("seed", range(3))
def test_the_program_finds_the_best_of_all_placements(seed):
    items = sampled(6, 3, seed)
    lengths, source, batch = items
    nodes = set(itertools.permutations((0, 0, 1, 1, 2, 2)))
    everyone = np.repeat(np.arange(3), 2)
    best = min(
        int(np.bincount(source, lengths * (np.array(order)[batch] != everyone[source]), 6).max()) for order in nodes
    )
    assert worst(items, solve_placement(items, 6, 2)[0], 2) == best


@pytest.mark.parametrize(("replicas", "samples"), [(32, 10), (24, 30)])
def test_the_search_is_near_the_optimum(replicas, samples):
    items = sampled(replicas, samples)
    volume = worst(items, nodewise.place_batches(items, replicas, 8), 8)
    optimum = worst(items, solve_placement(items, replicas, 8)[0], 8)
    assert volume <= 1.05 * optimum


def test_a_cluster_of_many_nodes():
    items = sampled(512, 20)
    volume = worst(items, nodewise.place_batches(items, 512, 8), 8)
    assert volume < 0.8 * worst(items, np.arange(512), 8)
    assert volume > items.lengths.sum() / 512 * 0.8


def test_replicas_that_were_ignored_take_part_where_the_guess_was_too_high():
    # Everything goes to batches that one node can host: nothing leaves, though every replica has the mean.
    replicas, per_node = 32, 2
    source = np.repeat(np.arange(replicas), 4)
    batch = (source + per_node) % replicas
    items = nodewise.SentItems(np.full(len(source), 10), source, batch)
    assert worst(items, nodewise.place_batches(items, replicas, per_node), per_node) == 0


def test_replicas_that_are_not_whole_nodes_are_refused():
    empty = nodewise.SentItems(*[np.zeros(0, int)] * 3)
    with pytest.raises(ValueError, match="nodes of 3"):
        nodewise.place_batches(empty, 8, 3)
    with pytest.raises(ValueError, match="0 replicas"):
        nodewise.place_batches(empty, 0, 1)
