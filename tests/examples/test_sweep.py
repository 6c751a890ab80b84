"""The example of a sweep: a row for each learning rate, by which the losses differ; only the first compiles."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

HOME = pathlib.Path(__file__).parents[2]


def test_the_example_compiles_once_and_the_largest_rate_learns_most(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    command = [sys.executable, str(HOME / "examples" / "sweep.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header == "learning rate   loss of steps 1-5   of 6-10   programs compiled"
    figures = [[float(figure) for figure in row.split()] for row in rows]
    assert [rate for rate, *_ in figures] == [1e-3, 3e-3, 1e-2]
    compiled = [count for *_, count in figures]
    assert compiled[0] > 20 and compiled[1:] == [0, 0]
    lasts = [last for _, _, last, _ in figures]
    assert lasts == sorted(lasts, reverse=True) and len(set(lasts)) == 3
    assert not list(tmp_path.iterdir())
