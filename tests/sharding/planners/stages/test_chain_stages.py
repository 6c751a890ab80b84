"""Partition and recomputation together: exact without chunks, within memory with them, and the plan says the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import balanced_stages, recomputed_stages, uniform_stages
from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.planners.stages.recomputation import HeldLayers
from tests.sharding.planners.stages.brute_force import all_partitions, bytes_needed, least_seconds
from tests.sharding.planners.stages.chains import random_chain

SEEDS = st.integers(0, 1_000_000)


def held_layers(counts, held):
    ends = np.cumsum(counts).tolist()
    return [HeldLayers(end - count, end, most_held) for end, count, most_held in zip(ends, counts, held, strict=True)]


@given(SEEDS, st.integers(1, 6), st.integers(1, 3), st.integers(10, 120))
@settings(deadline=None, max_examples=60)
def test_no_partition_with_any_recomputation_has_a_faster_slowest_rank(seed, layers, pp, memory):
    chain, layout = random_chain(seed, layers, 3, 4), ChainLayout(modules=("encoder",), pp=pp, microbatches=4)
    partition = balanced_stages(chain, layout, float(memory))
    held = microbatches_held(pp, 1, 4).tolist()
    best = min(
        (
            max(least_seconds(chain, [stage], memory) for stage in held_layers(counts, held))
            for counts in all_partitions(layers, pp)
        ),
        default=np.inf,
    )
    assert (partition is None) == np.isinf(best)
    if partition:
        assert partition.rank_seconds(chain, pp).max() == pytest.approx(best)
        for stage in held_layers(partition.counts, held):
            assert bytes_needed(chain, [stage], tuple(partition.policies[stage.first : stage.last].tolist())) <= memory


@given(SEEDS, st.integers(4, 9), st.integers(40, 400))
@settings(deadline=None)
def test_ranks_with_chunks_fit(seed, layers, memory):
    layout = ChainLayout(modules=("encoder",), pp=2, chunks=2, microbatches=4)
    chain = random_chain(seed, layers, 2, 4)
    partition = balanced_stages(chain, layout, float(memory))
    if partition is None:
        return
    stages = held_layers(partition.counts, microbatches_held(2, 2, 4).tolist())
    for rank in range(2):
        owned = stages[rank::2]
        policies = np.concatenate([partition.policies[stage.first : stage.last] for stage in owned])
        assert bytes_needed(chain, owned, tuple(policies.tolist())) <= memory
    again = recomputed_stages(chain, layout, partition.counts, float(memory))
    assert again and again.rank_seconds(chain, 2).max() == pytest.approx(partition.rank_seconds(chain, 2).max())


def test_the_plan_has_the_stages_and_their_policies():
    chain = random_chain(0, 6, 1, 2)
    layout = ChainLayout(
        modules=("encoder", "backbone"),
        pp=2,
        dp=1,
        tp=2,
        module_tp=(1, 2),
        microbatches=4,
        collectives="sequence_parallel",
    )
    stages = uniform_stages(chain, (4, 2), "full")
    stages.policies[1:3] = 0
    plan = stages.plan(chain, layout, extra_microbatches=1)
    (unit,) = plan.units
    assert (unit.layers, unit.recompute) == ((4, 2), ("1 full, 2 none, 1 full", "full"))
    assert (
        unit.parallelism.module_tp,
        unit.pp,
        unit.parallelism.dp,
        unit.parallelism.tp,
        unit.schedule_hints.extra_microbatches,
    ) == ((1, 2), 2, 1, 2, 1)
    assert (plan.microbatches, plan.schedule) == (4, "1f1b") and len(unit.devices) == 4
