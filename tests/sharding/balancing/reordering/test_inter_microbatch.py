"""Algorithm 3 keeps every microbatch, puts the smallest where the paper says, and fills intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.reordering.inter_microbatch import IntervalFillingOrder
from sharding.balancing.reordering.replay import build_replay
from sharding.schedules.one_f_one_b import gpipe, one_f_one_b
from sharding.schedules.ops import OpGraph
from tests.sharding.balancing.reordering.small_pipelines import all_seconds, skewed
from tests.sharding.stage_graphs import chain
from tests.sharding.steps import build_step, single_devices, stage_costs, step_costs, step_recipes


def chain_order(work: OpGraph, forwards: list, policy=one_f_one_b) -> list[int]:
    """Of a chain whose stages take `forwards[stage]` and twice that back."""
    stages = {
        node: stage_costs(np.array(seconds)[:, None], 2 * np.array(seconds)[:, None] * (node in work.backward_stages))
        for node, seconds in zip(work.stage_graph.stages, forwards, strict=True)
    }
    costs = step_costs(work, stages)
    replay = build_replay(single_devices(work.stage_graph), policy(work), costs, 1)
    return IntervalFillingOrder(replay).orders(replay.pipeline_microbatch_seconds(costs))[0].tolist()


def trained(stages: int, microbatches: int) -> OpGraph:
    graph = chain(stages)
    return OpGraph(
        stage_graph=graph,
        microbatches=microbatches,
        backward_stages=frozenset(graph.stages),
        trained_stages=frozenset(graph.stages),
    )


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_every_pipeline_keeps_its_microbatches(places, chunks, microbatches, pipelines, seed):
    replay, table = skewed(places, chunks, microbatches, seed, pipelines)
    orders = IntervalFillingOrder(replay).orders(table)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.arange(orders.size).reshape(orders.shape))


@given(step_recipes(bundles=False))
@settings(max_examples=25, deadline=None)
def test_every_pipeline_of_any_step_keeps_its_microbatches(recipe):
    step = build_step(recipe)
    replay = build_replay(step.devices, step.schedule, step.costs, 36)
    orders = IntervalFillingOrder(replay).orders(replay.pipeline_microbatch_seconds(step.costs))
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.arange(orders.size).reshape(orders.shape))


def test_steps_side_by_side_get_the_orders_that_each_gets_alone():
    replay, table = skewed(3, 1, 7, seed=0, pipelines=2)
    other = table[:, ::-1]
    algorithm = IntervalFillingOrder(replay)
    both = algorithm.orders(np.concatenate([table, other], axis=1))
    np.testing.assert_array_equal(both[:2], algorithm.orders(table))
    np.testing.assert_array_equal(both[2:] - table.shape[1], algorithm.orders(other))


@given(st.integers(1, 5), st.lists(st.integers(1, 50).map(float), min_size=1, max_size=9))
@settings(max_examples=30, deadline=None)
def test_the_smallest_comes_first_and_the_next_smallest_last(stages, numbers):
    order = chain_order(trained(stages, len(numbers)), [numbers] * stages)
    ascending = sorted(numbers)
    last = min(stages - 1, len(numbers) - 1)
    assert numbers[order[0]] == ascending[0]
    assert sorted(numbers[microbatch] for microbatch in order[len(order) - last :]) == ascending[1 : 1 + last]


def test_intervals_are_filled_by_the_microbatch_that_comes_closest():
    # Two stages; the second takes 9, 4, 9... forward and 18, 8, 18... back. The first interval is the first
    # microbatch's forward and backward there; each further one the backward of the next, without what is left of it.
    first = [1.0, 2.0, 12.0, 5.0, 20.0]
    second = [4.0, 4.0, 3.0, 5.0, 1.0]
    order = chain_order(trained(2, 5), [first, second])
    # First 1, last 2. An interval of 4 + 8: the 12. The first stage then goes back from 13 to 15 and the second goes
    # forward from 13 to 16 and back from 16 to 22: an interval of 22 - 15 = 7, filled by 5. The rest: 20.
    assert [first[microbatch] for microbatch in order] == [1.0, 12.0, 5.0, 20.0, 2.0]


def test_fewer_microbatches_than_the_papers_loop_needs():
    # p = 4 and l = 6: the first, three last ones, and two for the first interval.
    order = chain_order(trained(4, 6), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 4)
    assert order == [0, 4, 5, 3, 2, 1]


@pytest.mark.parametrize("backward", [frozenset(), frozenset([("unit", 1)])])
def test_a_first_stage_without_a_backward_has_no_intervals(backward):
    order = chain_order(
        OpGraph(stage_graph=chain(2), microbatches=4, backward_stages=backward, trained_stages=backward),
        [[4.0, 1.0, 3.0, 2.0]] * 2,
    )
    assert sorted(order) == [0, 1, 2, 3]
    assert order[0] == 1


def test_gpipe_has_one_interval_that_all_microbatches_fill():
    order = chain_order(trained(3, 5), [[5.0, 4.0, 3.0, 2.0, 1.0]] * 3, gpipe)
    assert order == [4, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("places", "chunks", "microbatches", "closed"), [(3, 1, 6, 0.45), (4, 1, 6, 0.45), (2, 2, 6, 0.15)]
)
def test_it_closes_much_of_the_gap_to_the_best_of_all_orders(places, chunks, microbatches, closed):
    gap = left = 0.0
    for seed in range(8):
        replay, table = skewed(places, chunks, microbatches, seed)
        every = all_seconds(replay, table)
        gap += every.mean() / every.min() - 1
        left += replay.step_seconds(table, IntervalFillingOrder(replay).orders(table))[0] / every.min() - 1
    assert left <= (1 - closed) * gap
