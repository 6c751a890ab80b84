"""Partitions of ranks with chunks: trying all is exact, and the local search is as near to it as documented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chunk_partition import ChunkPartitions, least_slowest_rank
from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.planners.stages.recomputation import HeldLayers
from tests.sharding.planners.stages.brute_force import all_partitions, least_seconds
from tests.sharding.planners.stages.chains import random_chain


def slowest(partitions, counts):
    return max(partitions.rank_costs(np.cumsum([0, *counts])))


@given(st.integers(0, 1_000_000), st.integers(4, 7), st.integers(20, 200))
@settings(deadline=None, max_examples=30)
def test_of_all_partitions_with_any_recomputation_none_has_a_faster_slowest_rank(seed, layers, memory):
    layout = ChainLayout(modules=("encoder",), pp=2, chunks=2, microbatches=4)
    chain, held = random_chain(seed, layers, 3, 8), microbatches_held(2, 2, 4).tolist()

    def rank_seconds(counts, rank):
        ends = np.cumsum(counts).tolist()
        stages = [HeldLayers(ends[number] - counts[number], ends[number], held[number]) for number in range(4)]
        return least_seconds(chain, stages[rank::2], float(memory))

    best = min(max(rank_seconds(counts, rank) for rank in range(2)) for counts in all_partitions(layers, 4))
    partitions = ChunkPartitions(chain, layout, float(memory))
    counts = partitions.best()
    assert (counts is None) == np.isinf(best)
    if counts:
        assert slowest(partitions, counts) == (0, pytest.approx(best))
        assert least_slowest_rank(chain, layout, float(memory)) <= best * (1 + 1e-9)


def test_the_local_search_is_no_farther_from_the_optimum_than_the_documentation_says():
    random, over = np.random.default_rng(1), []
    for seed in range(60):
        pp, chunks = ((2, 2), (2, 3), (3, 2))[seed % 3]
        layout = ChainLayout(modules=("encoder",), pp=pp, chunks=chunks, microbatches=2 * pp)
        chain = random_chain(seed, int(random.integers(10, 14)), 4, 3 * pp * chunks)
        memory = float(random.integers(60, 280))
        partitions = ChunkPartitions(chain, layout, memory)
        best, improved = partitions.best_of_all(), partitions.improved()
        assert (best is None) == (improved is None)
        if best and improved:
            over.append(slowest(partitions, improved)[1] / slowest(partitions, best)[1])
    assert len(over) > 40 and min(over) >= 1 - 1e-9
    assert np.mean(over) <= 1.004 and max(over) <= 1.07


def test_there_are_no_more_stages_than_layers():
    layout = ChainLayout(modules=("encoder",), pp=2, chunks=3, microbatches=4)
    assert ChunkPartitions(random_chain(0, 5, 2, 8), layout, 1e9).best() is None
    assert ChunkPartitions(random_chain(0, 6, 2, 8), layout, 1e9).best() == (1,) * 6
