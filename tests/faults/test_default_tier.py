"""Tests of the default tier fail where a fault is injected into what they test."""

import os
import re
import subprocess
import sys

import pytest

from tests.faults.plugin import FAULTS

pytestmark = pytest.mark.processes

ENGINE = "tests/mmjax/training/engine/test_engine.py"
FOUND_BY = {
    "missing-sum-over-replicas": ENGINE,
    "swapped-microbatches": ENGINE,
    "dropped-last-microbatch": ENGINE,
    "normaliser-off-by-5e-4": ENGINE,
    "hop-scaled-by-1.01": ENGINE,
    "lost-sample-on-resume": "tests/data/packing/test_batch_iterator.py",
}
"""By fault, a file of tests that must find it."""


def test_every_fault_has_tests_that_find_it():
    assert set(FOUND_BY) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_default_tier(fault):
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-p", "tests.faults.plugin", f"--inject={fault}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*command, FOUND_BY[fault]], env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, said
    assert re.search(r"^E +AssertionError", said, re.MULTILINE), said  # a test found it, and the fault is no crash
