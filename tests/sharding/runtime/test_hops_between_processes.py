"""Hops between real processes."""

import pytest

from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes


def test_arrays_go_there_and_back_between_two_processes():
    zero, one = run_cluster("tests.sharding.runtime.hops_between_processes", (3, 2))
    lines = [[line for line in said.splitlines() if line.startswith(("equal", "refused"))] for said in (zero, one)]
    assert lines[0] == ["equal 0 3", "equal 0 3", "equal 1 3", "equal 0 3", "equal 1 3", "refused True"]
    assert lines[1] == ["equal 2 0", "equal 2 0", "equal 1 0", "equal 2 0", "equal 1 0", "refused True"]
