"""The search finds the slowest stage that trying all partitions finds, and of ties the least first stages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.planners.stages.exact_partition import best_partition, partition_by
from tests.sharding.planners.stages.brute_force import all_partitions

WEIGHTS = st.lists(st.integers(0, 30), min_size=1, max_size=9)


@given(WEIGHTS, st.integers(1, 10))
def test_the_slowest_stage_is_as_fast_as_that_of_any_partition(weights, stages):
    found = partition_by(np.array(weights, float), stages)
    every = list(all_partitions(len(weights), stages)) if stages <= len(weights) else []
    if not every:
        assert found is None
        return
    assert found in every
    best = min(max(sums(weights, counts)) for counts in every)
    assert max(sums(weights, found)) == best


@given(WEIGHTS, st.integers(1, 5))
def test_of_equal_partitions_the_first_stages_own_the_fewest_layers(weights, stages):
    found = partition_by(np.array(weights, float), stages)
    if found is None:
        return
    slowest = max(sums(weights, found))
    equal = [counts for counts in all_partitions(len(weights), stages) if max(sums(weights, counts)) <= slowest]
    for number in range(1, stages):
        assert sum(found[:number]) == min(sum(counts[:number]) for counts in equal)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 4))
def test_stages_that_differ_and_do_not_fit(seed, layers, stages):
    random = np.random.default_rng(seed)
    weights, sizes = random.random(layers), random.integers(1, 5, layers)
    speed, room = random.random(stages) + 0.5, random.integers(2, 14, stages)

    def seconds(stage: int, first: int, last: int) -> float:
        return float(weights[first:last].sum() * speed[stage]) if sizes[first:last].sum() <= room[stage] else np.inf

    def slowest(counts: tuple[int, ...]) -> float:
        ends = np.cumsum(counts).tolist()
        return max(seconds(number, end - counts[number], end) for number, end in enumerate(ends))

    found = best_partition(seconds, layers, stages)
    best = min(map(slowest, all_partitions(layers, stages)), default=np.inf) if stages <= layers else np.inf
    assert (found is None) == np.isinf(best)
    if found:
        assert slowest(found) == pytest.approx(best, rel=1e-12)


def sums(weights: list[int], counts: tuple[int, ...]) -> list[float]:
    return [float(part.sum()) for part in np.split(np.array(weights, float), np.cumsum(counts)[:-1])]
