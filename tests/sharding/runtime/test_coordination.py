"""A process that waits for another in vain says so within its patience, and names what it waited for."""

import pytest

from tests.sharding.runtime.processes import run_cluster

pytestmark = pytest.mark.processes


def test_a_process_that_does_not_come_is_named():
    said, _ = run_cluster("tests.sharding.runtime.wait_for_a_process_that_never_comes", (1, 1))
    (error,) = (line for line in said.splitlines() if "waited" in line)
    assert error == (
        "process 0 waited 1 s for all 2 processes before the second meeting; missing: process 1; its log says why"
    )
