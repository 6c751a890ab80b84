"""`python -m mmjax.train` in two processes, of which the first fails when its trainer is open, before it trains."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import typing

import pytest

from mmjax.training.metrics.interface import RunStart
from tests.mmjax.commands.test_launch import PLAN

pytestmark = pytest.mark.processes

GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests import small_vqa
from tests.mmjax.training.heartbeat import test_failing_process
include "tiny.gin"
architectures.ModelConfig.generators = ()
data_config.DataConfig.mixture = (("vqa", 1.0),)
config.TrainConfig:
  dataset = @small_vqa.SmallVQA
  plan = "{folder}/plan.json"
  heartbeat_timeout = 20.0
  writers = (@test_failing_process.no_writer,)
"""


def no_writer(start: RunStart) -> typing.NoReturn:
    """Stands for a metrics writer that cannot be opened; process 0 alone opens one."""
    raise OSError("the tracker does not answer")


def test_an_error_after_the_trainer_is_open_ends_all_processes_and_the_failed_one_is_named(tmp_path):
    (tmp_path / "run.gin").write_text(GIN.format(folder=tmp_path))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = [f"--gin_file={tmp_path}/run.gin", f"--workdir={tmp_path}/run", "--batch_rows=4"]
    logs = [tmp_path / str(process) for process in range(2)]
    started = [_start(address, process, flags, log) for process, log in enumerate(logs)]
    try:
        codes = [process.wait(100) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    said = [log.read_text() for log in logs]
    assert codes == [1, 75], said
    assert "\nOSError: the tracker does not answer\n" in said[0]
    named = r"error: process 0 \(.*\) failed: OSError: the tracker does not answer; process 1 \(.*\) ends"
    assert re.search(named, said[1]), said[1]
    assert not (tmp_path / "run" / "run.lock").exists()


def _start(address: str, process: int, flags: list[str], log: pathlib.Path) -> subprocess.Popen:
    variables = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(process),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }
    with log.open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "mmjax.train", *flags],
            env=os.environ | variables,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
