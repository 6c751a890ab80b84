"""`python -m mmjax.train` as a launcher starts it: four processes, the quickstart's model and plan, the same losses.

No stage of that plan has devices of all four.
"""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from mmjax.training.metrics.metrics_file import read_metrics
from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

GIN = """
from __gin__ import dynamic_registration
from configs import optimizer
from mmjax.training import config
from tests import small_vqa
include "quickstart.gin"
config.TrainConfig:
  dataset = @small_vqa.SmallVQA
  steps = 3
  log_interval = 1
  sample_questions = 0
  sample_images = 0
optimizer.OptimizerConfig:
  schedule = @optimizer.ConstantRate()  # does not depend on the number of steps
  warmup_fraction = 0
"""


def start(folder: pathlib.Path, name: str, devices: int, *flags: str, **environment: str) -> subprocess.Popen:
    gin = folder / "run.gin"
    gin.write_text(GIN)
    variables = os.environ | environment
    variables["XLA_FLAGS"] = xla_flags(devices)
    with (folder / f"{name}.log").open("w") as log:
        workdir = folder / name.split("-")[0]
        command = [sys.executable, "-m", "mmjax.train", f"--gin_file={gin}", f"--workdir={workdir}", *flags]
        return subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT)


def finish(folder: pathlib.Path, processes: dict[str, subprocess.Popen]) -> None:
    try:
        for process in processes.values():
            process.wait(400)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    for name, process in processes.items():
        assert process.returncode == 0, (folder / f"{name}.log").read_text()


def losses(workdir: pathlib.Path) -> dict[int, dict[str, float]]:
    keys = ("loss/backbone", "loss/generator", "gradient_norm")
    return {line["step"]: {k: line[k] for k in keys} for line in read_metrics(str(workdir)) if keys[0] in line}


def test_four_processes_train_the_quickstart_to_the_losses_of_one_which_goes_on_from_there(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    coordinates = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "4"}
    processes = {
        name: start(tmp_path, name, 2, "--steps=2", **coordinates, JAX_PROCESS_ID=name[-1])
        for name in ("several-0", "several-1", "several-2", "several-3")
    }
    finish(tmp_path, processes)
    finish(tmp_path, {"several": start(tmp_path, "several", 8, "--resume", "--steps=3")})
    finish(tmp_path, {"one": start(tmp_path, "one", 8)})
    several, one = losses(tmp_path / "several"), losses(tmp_path / "one")
    assert list(several) == list(one) == [1, 2, 3]
    for step, values in one.items():
        for name, value in values.items():
            assert several[step][name] == pytest.approx(value, rel=1e-5), (step, name)
