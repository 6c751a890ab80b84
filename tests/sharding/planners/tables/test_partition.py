"""Balanced stages against all partitions."""

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sharding.planners.tables.partition import balanced_layers


def slowest(before, layer, after, counts):
    times = [layer * count for count in counts]
    times[0] += before
    times[-1] += after
    return max(times)


def compositions(layers, stages):
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield [b - a for a, b in itertools.pairwise((0, *cuts, layers))]


@given(
    st.integers(0, 40).map(lambda n: n / 8),
    st.integers(1, 12).map(lambda n: n / 8),
    st.integers(0, 40).map(lambda n: n / 8),
    st.integers(1, 9),
    st.integers(1, 9),
)
@example(0.0, 1.0, 0.3, 9, 4)
@settings(max_examples=150, deadline=None)
def test_no_partition_has_a_faster_slowest_stage(before, layer, after, layers, stages):
    stages = min(stages, layers)
    counts = balanced_layers(before, layer, after, layers, stages)
    assert sum(counts) == layers and len(counts) == stages and min(counts) >= 1
    best = min(slowest(before, layer, after, cut) for cut in compositions(layers, stages))
    assert slowest(before, layer, after, counts) <= best * (1 + 1e-6)


def test_first_stages_and_a_stage_with_a_heavy_head_own_fewer_layers():
    assert balanced_layers(0.0, 1.0, 0.0, 10, 4) == (2, 2, 3, 3)
    assert balanced_layers(0.0, 1.0, 2.0, 10, 4) == (3, 3, 3, 1)
    assert balanced_layers(0.0, 0.0, 0.0, 5, 2) in ((2, 3), (3, 2), (1, 4), (4, 1))
