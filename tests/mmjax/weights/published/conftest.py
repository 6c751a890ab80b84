"""What all tests of published models run under: each compiles a program of every kind, and runs it once."""

import pytest

from tests.mmjax.training import short_runs as runs


@pytest.fixture(scope="package", autouse=True)
def compiled_quickly():
    with runs.compiled_quickly():
        yield
