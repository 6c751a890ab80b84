"""`python -m mmjax.launch` of a training run that goes on after a killed and after a frozen process."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from mmjax.training.metrics.metrics_file import read_metrics

STEPS = 30
"""So many that the run is not over before the test has read a line of it and sent a signal."""

GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests import small_vqa
include "tiny.gin"
small_vqa.SmallVQA.images = 4
architectures.ModelConfig.generators = ()
data_config.DataConfig.mixture = (("vqa", 1.0),)
config.TrainConfig:
  dataset = @small_vqa.SmallVQA
  plan = "{plan}"
  steps = {steps}
  checkpoint_interval = 2
  log_interval = 1
  heartbeat_timeout = 20.0
  sample_questions = 0
"""
UNIT = {"dp": 1, "tp": 1, "recompute": ["none"]}
PLAN = {
    "microbatches": 1,
    "schedule": "1f1b",
    "units": [
        UNIT | {"name": "vision", "modules": ["vision"], "devices": [0], "layers": [3]},
        UNIT | {"name": "backbone", "modules": ["backbone"], "devices": [1], "layers": [4]},
    ],
}


def launch(folder: pathlib.Path, workdir: str, *flags: str) -> "subprocess.Popen[str]":
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "run.gin").write_text(GIN.format(plan=folder / "plan.json", steps=STEPS))
    environment = os.environ | {
        "JAX_ENABLE_COMPILATION_CACHE": "true",  # a restart finds the programs
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    train = ["--", "train", f"--gin_file={folder}/run.gin", f"--workdir={folder / workdir}", "--batch_rows=4"]
    return subprocess.Popen(
        [sys.executable, "-m", "mmjax.launch", *flags, *train],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_line(launcher: "subprocess.Popen[str]", beginning: str) -> None:
    """Reads the output up to the first line with this beginning."""
    assert launcher.stdout
    assert any(line.startswith(beginning) for line in launcher.stdout), launcher.communicate()


def children(launcher: "subprocess.Popen[str]") -> list[int]:
    """The ids of the processes of the run."""
    listed = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def process_id(launcher: "subprocess.Popen[str]", rank: int) -> int:
    """The id of a process of the run."""
    place = f"JAX_PROCESS_ID={rank}".encode()
    return next(
        pid for pid in children(launcher) if place in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )


def kill(launcher: "subprocess.Popen[str]") -> None:
    """Ends everything that is left of a run."""
    running = children(launcher)
    launcher.kill()
    for pid in running:
        os.killpg(pid, signal.SIGKILL)
    launcher.wait()


def losses(workdir: pathlib.Path) -> dict[int, dict[str, float]]:
    keys = ("loss/backbone", "gradient_norm")
    return {line["step"]: {k: line[k] for k in keys} for line in read_metrics(str(workdir)) if keys[0] in line}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, dict[str, float]]:
    """The losses of the run in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    launcher = launch(folder, "run", "--devices=2")
    said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    return losses(folder / "run")


def test_a_run_goes_on_after_a_process_was_killed_and_another_froze(tmp_path, undisturbed):
    launcher = launch(tmp_path, "run", "--processes=2", "--devices=1", "--restarts=2")
    try:
        wait_for_line(launcher, f"step 5/{STEPS}")  # saving step 4 has waited for the checkpoint of step 2
        os.kill(process_id(launcher, 1), signal.SIGKILL)
        wait_for_line(launcher, "1 microbatches")  # of the second start
        wait_for_line(launcher, f"step 6/{STEPS}")
        os.kill(process_id(launcher, 1), signal.SIGSTOP)
        output, errors = launcher.communicate(timeout=300)
    finally:
        kill(launcher)
    assert launcher.returncode == 0, output + errors
    host = socket.gethostname()
    assert f"mmjax launch: process 1 on {host} was ended by SIGKILL; all others were ended" in errors
    assert re.search(
        rf"error: process 1 \(on {host}, \w+ after step \d+\) has given no sign of life for \d+ s; "
        rf"process 0 \(on {host}, \w+ after step \d+\) ends; continue with --resume\n",
        errors,
    )
    assert f"mmjax launch: process 0 on {host} exited with code 75; all others were ended" in errors
    restarts = [line for line in errors.splitlines() if "of at most 2 within 3600 s: " in line]
    assert len(restarts) == 2 and all(line.endswith(" --resume") for line in restarts)
    disturbed = losses(tmp_path / "run")
    assert list(disturbed) == list(undisturbed) == list(range(1, STEPS + 1))
    for step, values in undisturbed.items():
        assert disturbed[step] == pytest.approx(values, rel=1e-5), step
