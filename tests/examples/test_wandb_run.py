"""The example of runs in Weights & Biases: every step of both runs is in their offline folders."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.mmjax.training.metrics.test_trackers import needs, wandb_history

pytestmark = pytest.mark.processes

HOME = pathlib.Path(__file__).parents[2]


@needs("wandb")
def test_the_example_logs_every_step_of_both_runs(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(HOME), *sys.path))}
    command = [sys.executable, str(HOME / "examples" / "wandb_run.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for rate in ("0.001", "0.003"):
        assert f"learning rate {rate}: losses " in done.stdout
        logged = wandb_history(tmp_path / "runs" / f"rate_{rate}" / "wandb")
        assert [step for step, name, _ in logged if name == "loss/backbone"] == list(range(1, 11))
        peaks = [value for _, name, value in logged if name == "learning_rate"]
        assert max(peaks) == pytest.approx(float(rate), rel=1e-5)
