"""The search keeps every pipeline microbatch, slows down no slowest pipeline, and comes near the best of all orders."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.reordering.local_search import search_orders
from tests.sharding.balancing.reordering.small_pipelines import all_seconds, skewed

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 7), st.integers(0, 99), st.integers(1, 9))


@given(SHAPES, st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_every_pipeline_microbatch_is_kept_and_the_slowest_pipeline_gets_no_slower(shape, budget):
    replay, table = skewed(*shape)
    given_orders = np.arange(replay.pipelines * replay.microbatches).reshape(replay.pipelines, -1)
    searched = search_orders(replay, table, given_orders, budget)
    np.testing.assert_array_equal(np.sort(searched, axis=None), np.arange(searched.size))
    assert replay.step_seconds(table, searched).max() <= replay.step_seconds(table, given_orders).max()
    np.testing.assert_array_equal(searched, search_orders(replay, table, given_orders, budget))


@pytest.mark.parametrize(("places", "chunks", "microbatches"), [(2, 1, 5), (4, 1, 6), (3, 1, 7), (2, 2, 6)])
def test_it_comes_close_to_the_best_of_all_orders(places, chunks, microbatches):
    for seed in range(4):
        replay, table = skewed(places, chunks, microbatches, seed)
        searched = search_orders(replay, table, np.arange(microbatches)[None], 1024)
        every = all_seconds(replay, table)
        assert replay.step_seconds(table, searched)[0] - every.min() <= 0.15 * (every.mean() - every.min())


def test_pipelines_swap_microbatches():
    replay, table = skewed(2, 1, 4, seed=0, pipelines=2)
    pipeline_microbatches = np.argsort(table[:4].sum(axis=0)).reshape(
        2, 4
    )  # the small ones in one pipeline, the large in the other
    searched = search_orders(replay, table, pipeline_microbatches, 1024)
    assert set(searched[1]) != set(pipeline_microbatches[1])
    assert replay.step_seconds(table, searched).max() < 0.9 * replay.step_seconds(table, pipeline_microbatches).max()
