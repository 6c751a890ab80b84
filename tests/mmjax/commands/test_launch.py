"""`python -m mmjax.launch` of a training run that goes on after a killed and after a frozen process.

Process 0 is killed while it trains, process 1 is frozen while it opens the data before it restores: each is noticed by
another way than that of any other process at any other time.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from mmjax.training.metrics.metrics_file import read_metrics
from sharding.specs.modules import module_graph
from tests.faulty_device import CHECKPOINTS_VARIABLE
from tests.profiles import synthetic_profile

pytestmark = pytest.mark.processes

STEPS = 30
"""So many that the run is not over before the test has read a line of it and sent a signal."""

GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests import faulty_device
from tests.mmjax.commands import freezing_vqa
include "tiny.gin"
freezing_vqa.FreezingVQA.freeze = "{folder}/freeze"
architectures.ModelConfig.generators = ()
data_config.DataConfig.mixture = (("vqa", 1.0),)
config.TrainConfig:
  dataset = @freezing_vqa.FreezingVQA
  plan = "{folder}/plan.json"
  steps = {steps}
  checkpoint_interval = 2
  log_interval = 1
  heartbeat_timeout = 20.0
  sample_questions = 0
"""
MODEL = ModelConfig(
    encoders=(VisionConfig(width=16, depth=3, heads=2, ffn=32),),
    backbone=BackboneConfig(width=16, depth=4, heads=4, kv_heads=2, ffn=32),
    generators=(),
)
"""That of tiny.gin without generators."""

UNIT = {"recompute": ["none"]}
PLAN = {
    "microbatches": 1,
    "schedule": "1f1b",
    "units": [
        UNIT | {"name": "vision", "modules": ["vision"], "devices": "0", "layers": [3]},
        UNIT | {"name": "backbone", "modules": ["backbone"], "devices": "1", "layers": [4]},
    ],
}


def launch(
    folder: pathlib.Path, workdir: str, *flags: str, train_flags: tuple[str, ...] = ()
) -> "subprocess.Popen[str]":
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "run.gin").write_text(GIN.format(folder=folder, steps=STEPS))
    environment = os.environ | {
        "JAX_ENABLE_COMPILATION_CACHE": "true",  # a restart finds the programs
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        CHECKPOINTS_VARIABLE: str(folder / workdir / "checkpoints") if train_flags else str(folder / "none"),
    }
    train = [
        "--",
        "train",
        f"--gin_file={folder}/run.gin",
        f"--workdir={folder / workdir}",
        "--batch_rows=4",
        *train_flags,
    ]
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


def assert_same_losses(disturbed: dict[int, dict[str, float]], undisturbed: dict[int, dict[str, float]]) -> None:
    assert list(disturbed) == list(undisturbed) == list(range(1, STEPS + 1))
    for step, values in undisturbed.items():
        assert disturbed[step] == pytest.approx(values, rel=1e-5), step


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, dict[str, float]]:
    """The losses of the run in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    launcher = launch(folder, "run", "--devices=2")
    said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    return losses(folder / "run")


def test_a_run_goes_on_after_process_0_was_killed_and_process_1_froze_at_the_start(tmp_path, undisturbed):
    launcher = launch(tmp_path, "run", "--processes=2", "--devices=1", "--restarts=2")
    try:
        wait_for_line(launcher, f"step 5/{STEPS}")  # saving step 4 has waited for the checkpoint of step 2
        (tmp_path / "freeze").write_text("1")  # at the second start
        os.kill(process_id(launcher, 0), signal.SIGKILL)
        output, errors = launcher.communicate(timeout=300)
    finally:
        kill(launcher)
    assert launcher.returncode == 0, output + errors
    host = socket.gethostname()
    log = (tmp_path / "run" / "process-1.log").read_text()
    assert f"mmjax launch: process 0 on {host} was ended by SIGKILL; all others were ended" in errors
    assert re.search(
        rf"error: process 0 \(on {host}, [\w ]+ after step \d+(, waiting for .+)?\) has ended; its log says why; "
        rf"process 1 \(on {host}, [\w ]+ after step \d+(, waiting for .+)?\) ends; continue with --resume\n",
        log,
    )
    assert re.search(
        rf"error: process 1 \(on {host}, starting after step 0\) has given no sign of life for \d+ s; "
        rf"process 0 \(on {host}, [\w ]+ after step \d+\) ends; continue with --resume\n",
        errors,
    )
    assert f"mmjax launch: process 0 on {host} exited with code 75; all others were ended" in errors
    for said in (log, errors):
        assert re.search(r"\nlast ops dispatched: .*\nerror: process", said)
        assert re.search(
            r'\(most recent call first\):\n(  File .+\n)*  File ".+/(trainer|training_run)\.py", line \d+ in', said
        )
    restarts = [line for line in errors.splitlines() if "of at most 2 within 3600 s: " in line]
    assert len(restarts) == 2 and all(line.endswith(" --resume") for line in restarts)
    assert_same_losses(losses(tmp_path / "run"), undisturbed)


def test_a_run_goes_on_without_a_process_whose_device_computes_wrongly(tmp_path, undisturbed):
    profile = tmp_path / "profile.json"
    profile.write_text(synthetic_profile(module_graph(MODEL), "cpu").to_json())
    launcher = launch(
        tmp_path,
        "run",
        "--processes=3",
        "--devices=1",
        "--restarts=2",
        "--min_processes=2",
        train_flags=("--plan=auto", f"--profile={profile}"),
    )
    try:
        wait_for_line(launcher, f"step 5/{STEPS}")
        os.kill(process_id(launcher, 2), signal.SIGKILL)
        output, errors = launcher.communicate(timeout=300)
    finally:
        kill(launcher)
    assert launcher.returncode == 0, output + errors
    host = socket.gethostname()
    assert f"mmjax launch: process 2 on {host} was ended by SIGKILL; all others were ended" in errors
    assert f"mmjax launch: process 1 on {host} exited with code 69; all others were ended" in errors
    wrong = rf"process 1 \({host}\): device \S+ multiplies wrongly in float32"
    assert re.search(rf"    error: {wrong}", errors) and re.search(
        rf"\nerror: {wrong}.*continue without that host", errors
    )
    assert "mmjax launch: process 1 is left out; 2 processes go on" in errors
    assert "3 x cpu, 3 processes" in output and "2 x cpu, 2 processes" in output
    assert_same_losses(losses(tmp_path / "run"), undisturbed)
