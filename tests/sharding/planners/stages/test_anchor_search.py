"""The paper's search: all candidates around the anchor, ranked by the formula, and the exact optimum is no slower."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.planners.stages.anchor_search import ranked_candidates
from sharding.planners.stages.layer_chain import stage_sums
from sharding.planners.stages.partition_baselines import by_greedy_forward, by_profile
from tests.sharding.planners.stages.chains import random_chain

SEEDS = st.integers(0, 1_000_000)


@given(SEEDS, st.integers(3, 9), st.integers(2, 4), st.integers(1, 2))
def test_candidates_are_those_around_the_anchor_in_the_order_of_the_formula(seed, layers, stages, radius):
    chain = random_chain(seed, layers, 3, 1)
    anchor = by_greedy_forward(chain, stages)
    if anchor is None:
        assert not ranked_candidates(chain, stages, radius, 5)
        return
    expected = []
    for moves in itertools.product(range(-radius, radius + 1), repeat=stages - 1):
        counts = np.diff([0, *(np.cumsum(anchor)[:-1] + moves), layers])
        if (counts > 0).all():
            expected.append(tuple(counts.tolist()))
    candidates = ranked_candidates(chain, stages, radius, 10_000)
    assert sorted(candidates) == sorted(expected)
    metrics = [metric(chain, counts) for counts in candidates]
    assert metrics == pytest.approx(sorted(metrics))


@given(SEEDS, st.integers(3, 9), st.integers(2, 4))
def test_no_candidate_is_faster_than_the_exact_partition(seed, layers, stages):
    chain = random_chain(seed, layers, 3, 1)
    if stages > layers:
        return
    exact = float(stage_sums(chain.plain_forward, by_profile(chain, stages)).max())
    for counts in ranked_candidates(chain, stages, 1, 8):
        assert exact <= float(stage_sums(chain.plain_forward, counts).max()) + 1e-9


def test_too_many_candidates_are_refused_with_their_number():
    with pytest.raises(ValueError, match="radius 3 around the 15 boundaries of 16 stages gives 4,747,561,509,943"):
        ranked_candidates(random_chain(0, 60, 2, 1), 16, 3, 5)


def metric(chain, counts):
    forward = stage_sums(chain.plain_forward, counts)
    hops = chain.hop_seconds[np.cumsum(counts)[:-1] - 1]
    return float(((forward - forward.mean()) ** 2).sum() / forward.mean() ** 2 + hops.sum() / forward.mean())
