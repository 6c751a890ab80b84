"""Searches for partitions: all candidates around an anchor, ranked by the formula; the exact optimum is no slower."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.stages.anchor_search import _near_moves, near_partitions, ranked_candidates
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import balanced_stages, rank_bytes, recomputed_stages
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


MEMORY = 60.0


def pipeline(stages, microbatches=6):
    return ChainLayout(modules=("encoder",), pp=stages, dp=1, microbatches=microbatches)


def recomputed_metric(chain, layout, counts):
    """VAR + SUM of the seconds under the best recomputation; None if that does not fit."""
    stages = recomputed_stages(chain, layout, counts, MEMORY)
    if stages is None:
        return None
    seconds = stages.rank_seconds(chain, layout.pp)
    spread = float(((seconds - seconds.mean()) ** 2).sum() / seconds.mean() ** 2)
    return spread + float(stages.hop_seconds(chain).sum() / seconds.mean())


@given(SEEDS, st.integers(4, 7), st.integers(2, 3))
@settings(max_examples=25, deadline=None)
def test_near_partitions_are_those_that_fit_in_the_order_of_the_formula(seed, layers, stages):
    chain, layout = random_chain(seed, layers, 3, 6), pipeline(stages)
    exact = balanced_stages(chain, layout, MEMORY)
    if exact is None:
        return
    expected = {}
    for moves in itertools.product(range(-2, 3), repeat=stages - 1):
        counts = tuple(np.diff([0, *(np.cumsum(exact.counts)[:-1] + moves), layers]).tolist())
        expected_metric = recomputed_metric(chain, layout, counts) if min(counts) > 0 else None
        if any(moves) and expected_metric is not None:
            expected[counts] = expected_metric
    near = near_partitions(chain, layout, exact.counts, MEMORY, 10_000)
    assert {found.counts for found in near} == expected.keys() and len(near) == len(expected)
    metrics = [expected[found.counts] for found in near]
    assert metrics == pytest.approx(sorted(metrics))
    for found in near:
        assert rank_bytes(chain, layout, found).max() <= MEMORY
        assert found.rank_seconds(chain, stages).max() >= exact.rank_seconds(chain, stages).max() - 1e-9
    few = near_partitions(chain, layout, exact.counts, MEMORY, 2)
    assert [found.counts for found in few] == [found.counts for found in near[:2]]


@pytest.mark.parametrize(("stages", "count"), [(6, 5**5), (8, 3**7), (12, 12 * 11)])
def test_boundaries_of_many_stages_move_less(stages, count):
    moves = _near_moves(stages)
    assert len({tuple(move) for move in moves.tolist()}) == len(moves) == count
    taken = np.diff(moves, axis=1, prepend=0, append=0)  # layers that stages get or give
    assert stages < 12 or (np.sort(taken, axis=1)[:, [0, -1]] == [-1, 1]).all()
    assert stages < 12 or (np.abs(taken).sum(axis=1) == 2).all()  # a layer from one stage to another
