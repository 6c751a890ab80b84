"""The partition has the slowest stage that trying all partitions finds, and of ties the first stages own the least."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Bool, Float

from sharding.planners.stages.exact_partition import (
    best_partition,
    best_partition_of_bounds,
    partition_by,
    sums_between,
)
from tests.sharding.planners.stages.brute_force import all_partitions

WEIGHTS = st.lists(st.integers(0, 30), min_size=1, max_size=9)
SIZES = [(layers, stages) for layers in range(1, 8) for stages in range(1, min(layers, 4) + 1)]
CHAINS = 250 * len(SIZES)  # 5,500


@given(WEIGHTS, st.integers(1, 10))
def test_the_slowest_stage_is_as_fast_as_that_of_any_partition(weights, stages):
    counts = partition_by(np.array(weights, float), stages)
    every = list(all_partitions(len(weights), stages)) if stages <= len(weights) else []
    if not every:
        assert counts is None
        return
    assert counts in every
    best = min(max(sums(weights, counts)) for counts in every)
    assert max(sums(weights, counts)) == best


@given(WEIGHTS, st.integers(1, 5))
def test_of_equal_partitions_the_first_stages_own_the_fewest_layers(weights, stages):
    partition = partition_by(np.array(weights, float), stages)
    if partition is None:
        return
    slowest = max(sums(weights, partition))
    equal = [counts for counts in all_partitions(len(weights), stages) if max(sums(weights, counts)) <= slowest]
    for number in range(1, stages):
        assert sum(partition[:number]) == min(sum(counts[:number]) for counts in equal)


def speeds_that_differ(random, seconds, size):
    return seconds * random.integers(1, 5, (*seconds.shape[:2], 1, 1))


def rooms_that_differ(random, seconds, size):
    return np.where(size <= random.integers(2, 14, (*seconds.shape[:2], 1, 1)), seconds, np.inf)


def speeds_and_rooms_that_differ(random, seconds, size):
    return rooms_that_differ(random, speeds_that_differ(random, seconds, size), size)


def rooms_that_grow_downstream(random, seconds, size):
    return np.where(size <= np.sort(random.integers(2, 14, (*seconds.shape[:2], 1, 1)), axis=1), seconds, np.inf)


DIFFERENCES = (speeds_that_differ, rooms_that_differ, speeds_and_rooms_that_differ, rooms_that_grow_downstream)


@pytest.mark.parametrize("differ", DIFFERENCES)
def test_stages_that_differ_have_the_best_partition_of_all(differ):
    fitting = 0
    for layers, stages in SIZES:
        tables = random_tables(differ, layers, stages, CHAINS // len(SIZES))
        expected = best_by_trying_all(tables)
        assert [best_partition(list(chain_tables)) for chain_tables in tables] == expected
        fitting += sum(counts is not None for counts in expected)
    assert fitting > CHAINS / 3


@pytest.mark.parametrize("differ", DIFFERENCES)
def test_bounds_leave_the_partition_that_all_seconds_give(differ):
    for layers, stages in SIZES:
        tables = random_tables(differ, layers, stages, CHAINS // len(SIZES) // 10)
        bounds = np.where(owned(layers), np.floor(np.minimum(tables, 20.0) / 2), np.inf)
        for chain_tables, lower, expected in zip(tables, bounds, best_by_trying_all(tables), strict=True):
            partition = best_partition_of_bounds(list(lower), lambda *place, table=chain_tables: float(table[place]))
            assert partition == expected
            assert (lower <= chain_tables).all()


def test_stages_that_take_the_same_share_their_bounds():
    random = np.random.default_rng(2)
    for _ in range(50):
        weights, asked = random.integers(1, 5, 8).astype(float), set()
        table = sums_between(np.cumsum([0.0, *weights]))

        def seconds(stage: int, first: int, last: int, table=table, asked=asked) -> float:
            asked.add((first, last))
            return float(table[first, last])

        bounds = np.where(owned(8), 0.0, np.inf)
        assert best_partition_of_bounds([bounds] * 3, seconds) == partition_by(weights, 3)
        assert (bounds <= table).all()
        assert len(asked) < owned(8).sum()


@pytest.mark.parametrize("stages", range(2, 9))
def test_rounding_of_sums_makes_no_partition_better_than_its_equals(stages):
    for layers in range(stages, 40):
        expected = partition_by(np.ones(layers), stages)
        for weight in (0.1, 0.3, 1 / 7):
            assert partition_by(np.full(layers, weight), stages) == expected


def random_tables(differ, layers: int, stages: int, chains: int) -> Float[np.ndarray, "chains stages ends ends"]:
    """What stages take that differ in one way; whole numbers, so that sums are equal however they are added up."""
    random = np.random.default_rng([layers, stages])
    layer_seconds = random.integers(1, 5, (2, chains, 1, layers)).astype(float)
    before = np.cumsum(np.pad(layer_seconds, ((0, 0), (0, 0), (0, 0), (1, 0))), axis=-1)
    stage_seconds = np.repeat(before[..., None, :] - before[..., None], stages, axis=2)
    return np.where(owned(layers), differ(random, *stage_seconds), np.inf)


def owned(layers: int) -> Bool[np.ndarray, "ends ends"]:
    """Where a stage owns a layer."""
    return np.triu(np.ones((layers + 1, layers + 1), bool), 1)


def best_by_trying_all(tables: Float[np.ndarray, "chains stages ends ends"]) -> list[tuple[int, ...] | None]:
    layers, stages = tables.shape[2] - 1, tables.shape[1]
    cuts = np.cumsum([(0, *counts) for counts in all_partitions(layers, stages)], axis=1)
    slowest = tables[:, np.arange(stages), cuts[:, :-1], cuts[:, 1:]].max(axis=2)  # [chains, partitions]
    is_best = slowest == slowest.min(axis=1, keepdims=True)
    earliest = np.where(is_best[:, :, None], cuts, layers).min(axis=1)  # every stage's end by itself
    fits = np.isfinite(slowest).any(axis=1).tolist()
    return [tuple(np.diff(ends).tolist()) if fit else None for ends, fit in zip(earliest, fits, strict=True)]


def sums(weights: list[int], counts: tuple[int, ...]) -> list[float]:
    return [float(part.sum()) for part in np.split(np.array(weights, float), np.cumsum(counts)[:-1])]
