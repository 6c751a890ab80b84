"""Computation beside transfers, and the slowest of several ranks, against a simulation in small steps and sampling."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.cost_effects import CostEffects
from sharding.costs.concurrency import expected_largest, exposed_seconds

SECONDS = st.floats(0.0, 10.0)
SLOWDOWNS = st.floats(1.0, 2.0)


def run_both(compute: float, transfer: float, effects: CostEffects) -> float:
    """Seconds until both have ended, of work that proceeds at a rate, event by event."""
    left = [compute, transfer]
    clock = 0.0
    while max(left) > 1e-12:
        active = [work > 1e-12 for work in left]
        slowdowns = (effects.compute_slowdown, effects.transfer_slowdown) if all(active) else (1.0, 1.0)
        step = min(work * slow for work, slow, runs in zip(left, slowdowns, active, strict=True) if runs)
        left = [work - step / slow if runs else 0.0 for work, slow, runs in zip(left, slowdowns, active, strict=True)]
        clock += step
    return clock


@given(SECONDS, SECONDS, SLOWDOWNS, SLOWDOWNS)
def test_exposed_seconds_are_those_of_two_that_slow_each_other(compute, transfer, slower, later):
    effects = CostEffects(compute_slowdown=slower, transfer_slowdown=later)
    exposed = float(exposed_seconds(compute, transfer, effects))
    assert exposed == pytest.approx(run_both(compute, transfer, effects) - compute, abs=1e-9)
    assert -1e-9 <= exposed <= transfer + 1e-9  # no slower than one after the other


@given(SECONDS, SECONDS)
def test_without_slowdowns_only_what_outlasts_the_computation_is_exposed(compute, transfer):
    assert float(exposed_seconds(compute, transfer, CostEffects())) == max(transfer - compute, 0.0)


def test_the_largest_of_more_ranks_is_larger_and_is_what_samples_have():
    assert expected_largest(1) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-5)
    samples = np.abs(np.random.default_rng(0).normal(size=(20_000, 64)))
    for ranks in (2, 8, 64):
        assert expected_largest(ranks) == pytest.approx(samples[:, :ranks].max(axis=1).mean(), rel=0.02)
    values = [expected_largest(ranks) for ranks in (1, 2, 3, 8, 64, 1024)]
    assert values == sorted(values)
