"""The recurrence on arrays against one node at a time, on random graphs."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.schedules.recurrence.graph_builder import NO_NODE, WaitGraphBuilder
from sharding.schedules.recurrence.wait_graph import WaitGraph


@st.composite
def graphs(draw: st.DrawFn) -> tuple[WaitGraph, list[list[int]]]:
    """A graph of random ranges, and for every node the nodes that it waits for, node 0 left out."""
    builder = WaitGraphBuilder()
    ranges: list[tuple[int, list[tuple[int, np.ndarray]]]] = []
    for number in range(draw(st.integers(1, 12))):
        size = draw(st.integers(1, 4))
        waits = []
        for awaited in draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else ():
            entries = st.integers(NO_NODE, ranges[awaited][0] - 1)
            width = draw(st.sampled_from([1, 2, 9]))
            table = draw(st.lists(entries, min_size=width * size, max_size=width * size))
            waits.append((awaited, np.array(table).reshape(width, size)))
        ranges.append((size, waits))
        assert builder.add(size, [(awaited, builder.table(table)) for awaited, table in waits]) == number
    graph, first_nodes = builder.build()
    needs: list[list[int]] = [[] for _ in range(graph.count)]
    for first, (size, waits) in zip(first_nodes.tolist(), ranges, strict=True):
        for node in range(size):
            for awaited, table in waits:
                entries = table[:, node]
                needs[first + node] += (first_nodes[awaited] + entries[entries != NO_NODE]).tolist()
    return graph, needs


def random_seconds(graph: WaitGraph, seed: int, *others: int) -> np.ndarray:
    """Seconds whose sums are not exact; node 0 takes none."""
    seconds = np.random.default_rng(seed).uniform(0, 1, (graph.count, *others))
    seconds[0] = 0.0
    return seconds


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_a_node_starts_when_the_last_that_it_waits_for_has_ended(drawn, seed):
    graph, needs = drawn
    seconds = random_seconds(graph, seed)
    starts, ends = [0.0], [0.0]
    for node in range(1, graph.count):  # in topological order
        assert all(need < node for need in needs[node])
        starts.append(max((ends[need] for need in needs[node]), default=0.0))
        ends.append(starts[-1] + seconds[node])
    times = graph.run(seconds)
    np.testing.assert_array_equal(times.starts, starts)
    np.testing.assert_array_equal(times.ends, ends)
    assert max(ends) == times.ends[graph.last_nodes].max()


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_measured_nodes_start_once_released_and_end_no_earlier_than_seen(drawn, seed):
    graph, needs = drawn
    released, ended = (5 * random_seconds(graph, seed, 2)).T
    unknown = np.random.default_rng(seed).random((2, graph.count)) < 0.3
    released[unknown[0]], ended[unknown[1]] = math.nan, math.nan
    starts, ends = [0.0], [0.0]
    for node in range(1, graph.count):
        moments = [0.0, *(ends[need] for need in needs[node]), released[node]]
        starts.append(max(moment for moment in moments if not math.isnan(moment)))
        ends.append(starts[-1] if math.isnan(ended[node]) else max(starts[-1], ended[node]))
    times = graph.run_measured(released, ended)
    np.testing.assert_array_equal(times.starts, starts)
    np.testing.assert_array_equal(times.ends, ends)


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_many_runs_at_once_are_the_same_runs(drawn, seed):
    graph, _ = drawn
    seconds = random_seconds(graph, seed, 3)
    ends = np.stack([graph.run(column).ends for column in seconds.T], axis=1)
    np.testing.assert_array_equal(graph.add_starts(seconds.copy()), ends)


@settings(max_examples=50, deadline=None)
@given(graphs(), st.data())
def test_selected_nodes_are_computed_again_as_in_a_run(drawn, data):
    graph, _ = drawn
    chosen = np.array(sorted(data.draw(st.sets(st.integers(1, graph.count - 1)))), int)
    seconds = random_seconds(graph, 0)
    ends = graph.run(seconds).ends
    again = ends.copy()
    again[chosen] = np.nan
    blocks = graph.select(chosen)
    for block in blocks:
        again[block.nodes] = block.latest(again) + seconds[block.nodes]
    np.testing.assert_array_equal(again, ends)
    assert [node for block in blocks for node in block.nodes] == chosen.tolist()


def test_nodes_that_wait_for_many_others_have_a_block_of_their_own():
    builder = WaitGraphBuilder()
    first = builder.add(100, [])
    second = builder.add(100, [(first, builder.table(np.arange(100)[None]))])
    builder.add(100, [(second, builder.table(np.arange(100)[None]))])
    builder.add(1, [(second, builder.table(np.arange(100)[:, None]))])
    graph, _ = builder.build()
    assert [block.waits.shape for block in graph.blocks] == [(1, 100), (1, 100), (1, 100), (100, 1)]
