"""The relaxed optimum against a convex solver, and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner.speed import solve_by_scipy
from sharding.planners.relaxation import RelaxedProblems

UNIT = st.integers(1, 100).map(lambda n: n / 10)


@given(
    st.tuples(*[UNIT] * 3),
    st.tuples(*[st.sampled_from([0.0, 0.5, 3.0])] * 3),
    st.tuples(*[st.integers(1, 6)] * 3),
    st.integers(0, 60),
    st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_agrees_with_scipy(work, warm, least, steady, fastest):
    devices = 20
    convex = RelaxedProblems(
        np.array([work]), np.array([warm]), np.array([0.5]), np.array([float(steady)]), np.array([least], float),
        np.array([fastest]),
    )  # fmt: skip
    seconds, shares = convex.solve(devices)
    assert seconds[0] == pytest.approx(solve_by_scipy(convex, 0, devices, shares[0]), rel=1e-4)
    assert shares.sum() <= devices * (1 + 1e-9) and (shares >= convex.min_devices * (1 - 1e-9)).all()


def test_one_module_alone_takes_every_device():
    convex = RelaxedProblems(*(np.array(part) for part in ([[6.0]], [[0.0]], [1.0], [10.0], [[1.0]], [0.0])))
    seconds, shares = convex.solve(3)
    assert seconds[0] == pytest.approx(1 + 10 * 2) and shares[0, 0] == pytest.approx(3)


def test_more_than_there_is_takes_forever():
    convex = RelaxedProblems(
        *(np.array(part) for part in ([[1.0, 1.0]], [[0.0, 1.0]], [0.0], [1.0], [[2.0, 2.0]], [0.0]))
    )
    assert convex.solve(3)[0][0] == np.inf
    assert np.isfinite(convex.solve(4)[0][0])
