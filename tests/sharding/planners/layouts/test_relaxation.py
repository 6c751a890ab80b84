"""Relaxed optima equal those of a convex solver, and those computed by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner.speed import solve_by_scipy
from sharding.planners.layouts.relaxation import RelaxedProblems

UNIT = st.integers(1, 100).map(lambda n: n / 10)


def one_problem(*, device_seconds, fill, constant_fill, steady, min_devices, min_stage_seconds) -> RelaxedProblems:
    """A single problem; per-module figures are sequences."""
    return RelaxedProblems(
        device_seconds=np.array([device_seconds], float),
        fill=np.array([fill], float),
        constant_fill=np.array([constant_fill], float),
        steady_microbatches=np.array([steady], float),
        min_devices=np.array([min_devices], float),
        min_stage_seconds=np.array([min_stage_seconds], float),
    )


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # of scipy 1.14
@given(
    device_seconds=st.tuples(*[UNIT] * 3),
    fill=st.tuples(*[st.sampled_from([0.0, 0.5, 3.0])] * 3),
    min_devices=st.tuples(*[st.integers(1, 6)] * 3),
    steady=st.integers(0, 60),
    min_stage_seconds=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_agrees_with_scipy(**figures):
    devices = 20
    problems = one_problem(constant_fill=0.5, **figures)
    seconds, split = problems.solve(devices)
    assert seconds[0] == pytest.approx(solve_by_scipy(problems, 0, devices, split[0]), rel=1e-4)
    assert split.sum() <= devices * (1 + 1e-9) and (split >= problems.min_devices * (1 - 1e-9)).all()


def test_one_module_alone_takes_every_device():
    problems = one_problem(
        device_seconds=[6.0], fill=[0.0], constant_fill=1.0, steady=10.0, min_devices=[1.0], min_stage_seconds=0.0
    )
    seconds, split = problems.solve(3)
    assert seconds[0] == pytest.approx(1 + 10 * 2) and split[0, 0] == pytest.approx(3)


def test_a_problem_that_needs_more_devices_than_there_are_has_no_optimum():
    problems = one_problem(
        device_seconds=[1.0, 1.0], fill=[0.0, 1.0], constant_fill=0.0, steady=1.0, min_devices=[2.0, 2.0],
        min_stage_seconds=0.0,
    )  # fmt: skip
    assert problems.solve(3)[0][0] == np.inf
    assert np.isfinite(problems.solve(4)[0][0])
