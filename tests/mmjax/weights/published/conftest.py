"""Compiler settings of all parity tests, which run each of their programs once."""

import pytest

from tests.compilation import quick_compilation


@pytest.fixture(scope="package", autouse=True)
def compiled_quickly():
    with quick_compilation():
        yield
