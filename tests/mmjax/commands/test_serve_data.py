"""`python -m mmjax.train` on the batches of two `python -m mmjax.serve_data`, all as a user starts them."""

import json
import os
import subprocess
import sys

import pyarrow.flight as flight
import pytest

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from data.producers.step_request import STATUS_ACTION
from tests.producers import running
from tests.small_vqa import SmallVQA
from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

TOKEN = "a-long-random-word"
STEPS = 2
# Text alone, which nothing judges, in the smallest backbone: almost all of the time goes into compiling it.
GIN = f"""
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests.mmjax.commands import test_serve_data
include "tiny.gin"
config.TrainConfig:
  dataset = @test_serve_data.Unjudged
  steps = {STEPS}
  log_interval = {STEPS}
  sample_questions = 0
  sample_images = 0
architectures.BackboneConfig.depth = 1
architectures.ModelConfig.encoders = ()
architectures.ModelConfig.generators = ()
data_config.DataConfig.rows = 2
data_config.DataConfig.tokens = 64
data_config.DataConfig.mixture = (("text", 1.0),)
"""
DATA = DataConfig(rows=2, tokens=64, patches=32, images=4, mixture=(("text", 1.0),))


class Unjudged(SmallVQA):
    """Held-out accuracy is not counted on it."""

    def __init__(self, split: str) -> None:
        super().__init__(split)
        self.evaluated_kinds = ()


def served(address: str) -> int:
    with flight.FlightClient(f"grpc://{address}") as client:
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
        (answer,) = client.do_action(STATUS_ACTION, options)
        return json.loads(answer.body.to_pybytes())["served"]


def test_a_run_trains_on_what_two_producers_make(tmp_path):
    gin, token, workdir = tmp_path / "run.gin", tmp_path / "token", tmp_path / "run"
    gin.write_text(GIN)
    token.write_text(TOKEN)
    flags = {"XLA_FLAGS": xla_flags(1), "MMJAX_SERVICE_TOKEN": TOKEN}
    with running(gin, f"--token_file={token}", count=2) as producers:
        addresses = tuple(address for _, address in producers)
        arguments = (f"--gin_file={gin}", f"--workdir={workdir}", f"--gin.config.TrainConfig.producers={addresses}")
        command = [sys.executable, "-m", "mmjax.train", *arguments]
        done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert all(served(address) for address in addresses)
    batches = training_batches(DATA, ModelConfig(encoders=(), generators=()), SmallVQA("train"))
    counts = [next(batches).real_and_capacity["backbone"][0] for _ in range(STEPS)]
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["data"] == batches.counters()
    batches.close()
    logged = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("tokens/backbone/real", 0) for line in logged) == sum(counts)
    assert TOKEN not in (workdir / "operative.gin").read_text() + done.stdout + done.stderr
