"""The recomputation of a rank's layers is that which trying all of them finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.stages.recomputation import HeldLayers, RecomputationSolver
from tests.sharding.planners.stages.brute_force import bytes_needed, least_seconds, seconds_of
from tests.sharding.planners.stages.chains import random_chain

SEEDS = st.integers(0, 1_000_000)


@given(SEEDS, st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 120))
@settings(deadline=None)
def test_one_stage_takes_the_fewest_seconds_that_fit(seed, layers, kinds, in_flight, memory):
    chain = random_chain(seed, layers, kinds, in_flight)
    stage = HeldLayers(0, layers, in_flight)
    solver, expected = RecomputationSolver(chain, float(memory)), least_seconds(chain, [stage], memory)
    assert solver.least_seconds(stage) == pytest.approx(expected)
    choice = solver.choose([stage])
    assert (choice is None) == np.isinf(expected)
    if choice:
        policies = tuple(choice.policies.tolist())
        assert choice.seconds == pytest.approx(expected) == seconds_of(chain, [stage], policies)
        assert bytes_needed(chain, [stage], policies) <= memory


@given(SEEDS, st.integers(2, 6), st.integers(1, 3), st.integers(0, 160))
@settings(deadline=None)
def test_a_rank_with_chunks_chooses_for_all_of_them_together(seed, layers, kinds, memory):
    chain = random_chain(seed, layers, kinds, 4)
    stages = [HeldLayers(0, layers // 2, 4), HeldLayers(layers // 2, layers, 2)]
    choice = RecomputationSolver(chain, float(memory)).choose(stages)
    expected = least_seconds(chain, stages, memory)
    assert (choice.seconds if choice else np.inf) == pytest.approx(expected)
    if choice:
        policies = tuple(choice.policies.tolist())
        assert seconds_of(chain, stages, policies) == pytest.approx(expected)
        assert bytes_needed(chain, stages, policies) <= memory


@given(SEEDS, st.integers(2, 12), st.integers(0, 200))
@settings(deadline=None)
def test_of_equal_layers_those_that_hold_less_come_first(seed, layers, memory):
    chain = random_chain(seed, layers, 1, 2)
    choice = RecomputationSolver(chain, float(memory)).choose([HeldLayers(0, layers, 2)])
    if choice:
        held = chain.held_bytes[np.arange(layers), choice.policies, 1]
        assert (np.diff(held) >= 0).all()


@given(SEEDS, st.integers(1, 6), st.integers(0, 120))
@settings(deadline=None)
def test_more_layers_never_take_less(seed, layers, memory):
    solver = RecomputationSolver(random_chain(seed, layers + 1, 2, 2), float(memory))
    whole = solver.least_seconds(HeldLayers(0, layers + 1, 2))
    assert solver.least_seconds(HeldLayers(0, layers, 2)) <= whole
    assert solver.least_seconds(HeldLayers(1, layers + 1, 2)) <= whole
