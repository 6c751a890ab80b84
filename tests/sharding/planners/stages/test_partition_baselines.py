"""Partitions that see parameters, layers or forwards alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharding.planners.stages.layer_chain import spread, stage_sums
from sharding.planners.stages.partition_baselines import PARTITION_METHODS, by_greedy_forward, by_layers
from tests.sharding.planners.stages.brute_force import all_partitions
from tests.sharding.planners.stages.chains import random_chain

SEEDS = st.integers(0, 1_000_000)


@given(SEEDS, st.integers(1, 8), st.integers(1, 8))
def test_each_is_best_by_what_it_sees(seed, layers, stages):
    chain = random_chain(seed, layers, 3, 1)
    seen = {
        "layers": np.ones(layers),
        "parameters": chain.parameters,
        "profile": chain.plain_forward,
        "virtual stages": chain.seconds.min(axis=1),
    }
    for name, method in PARTITION_METHODS.items():
        counts = method(chain, stages)
        if stages > layers:
            assert counts is None
            continue
        assert counts is not None
        best = min(stage_sums(seen[name], counts).max() for counts in all_partitions(layers, stages))
        assert np.isclose(stage_sums(seen[name], counts).max(), best)


@given(SEEDS, st.integers(2, 8), st.integers(1, 4))
def test_the_anchor_puts_each_boundary_nearest_to_its_share(seed, layers, stages):
    chain = random_chain(seed, layers, 3, 1)
    counts = by_greedy_forward(chain, stages)
    if stages > layers:
        assert counts is None
        return
    assert counts is not None and sum(counts) == layers and min(counts) > 0
    before, cuts = np.append(0.0, np.cumsum(chain.plain_forward)), [0, *np.cumsum(counts).tolist()]
    for stage in range(1, stages):
        shares = np.abs(before - before[-1] * stage / stages)[cuts[stage - 1] + 1 : layers - (stages - stage) + 1]
        assert np.isclose(shares.min(), abs(before[cuts[stage]] - before[-1] * stage / stages))


def test_by_layers_gives_the_first_stages_one_more():
    assert by_layers(random_chain(0, 11, 2, 1), 4) == (3, 3, 3, 2)


def test_the_spread_is_the_slowest_over_the_mean():
    assert spread(np.array([1.0, 2.0, 3.0])) == 1.5
