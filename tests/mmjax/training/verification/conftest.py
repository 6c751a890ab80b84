"""The reference that several files of tests compare layouts with."""

import pytest

from tests.verified_run import run_small_reference


@pytest.fixture(scope="session")
def reference():
    return run_small_reference()
