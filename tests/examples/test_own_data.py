"""A data set in a file of the user's own, found by gin in the current folder."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

HOME = pathlib.Path(__file__).parents[2]


def test_a_copy_of_the_example_trains_and_is_evaluated_on_its_own_test_split(tmp_path):
    for name in ("own_data.py", "own_data.gin"):
        shutil.copy(HOME / "examples" / name, tmp_path)
    command = [sys.executable, "-m", "mmjax.train", "--gin_file=own_data.gin", "--gin.STEPS=3", "--workdir=run"]
    environment = os.environ | {"PYTHONPATH": str(HOME), "XLA_FLAGS": xla_flags(1)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["questions"]) == (3, 100)
    assert "own_data.coloured_squares" in (tmp_path / "run" / "operative.gin").read_text()
