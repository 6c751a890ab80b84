"""The run that faults hit: a tiny model in 2 to 4 processes of one device, over one epoch of numbered images."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

from benchmarks.faults.audited_data import image_path
from sharding.plans.text.device_ranges import device_ranges

PROCESSES = (2, 3, 4)
STEPS = 40
ROWS = 4
IMAGES = STEPS * ROWS
"""Training images: one epoch."""

HELD_OUT = 4
CHECKPOINT_INTERVAL = 2
HEARTBEAT_TIMEOUT = 20.0

_GIN = """
from __gin__ import dynamic_registration
from benchmarks.faults import audited_data
from configs import architectures
from data import data_config
from mmjax.training import config
include "tiny.gin"
audited_data.AuditedImages:
  folder = "{images}"
  count = {count}
  held_out = {held_out}
audited_data.SampleWriters.rows = {rows}
architectures.ModelConfig.generators = ()
architectures.BackboneConfig.vocabulary = 272
data_config.DataConfig:
  rows = {rows}
  samples = 1
  tokens = 48
  mixture = ()
  max_refused_share = 0.2
config.TrainConfig:
  dataset = @audited_data.AuditedImages
  plan = "{plan}"
  steps = {steps}
  checkpoint_interval = {checkpoint_interval}
  keep_checkpoints = 3
  evaluation_interval = 8
  log_interval = 1
  heartbeat_timeout = {heartbeat_timeout}
  sample_questions = 0
  sample_images = 0
  producers = {producers}
  producer_timeout = 60.0
  writers = (@audited_data.SampleWriters(),)
"""

_UNIT = {"recompute": ["none"]}
_BACKBONE_LAYERS = {1: [4], 2: [2, 2], 3: [2, 1, 1]}


def plan_document(processes: int) -> dict:
    """The plan for so many processes of one device: the encoder on the first, the backbone's stages on the others."""
    stages = processes - 1
    recompute = ["none"] * stages
    backbone = {"name": "backbone", "modules": ["backbone"], "devices": device_ranges(range(1, processes))}
    return {
        "microbatches": 2,
        "schedule": "1f1b",
        "units": [
            _UNIT | {"name": "vision", "modules": ["vision"], "devices": "0", "layers": [3]},
            _UNIT | backbone | {"layers": _BACKBONE_LAYERS[stages], "recompute": recompute},
        ],
    }


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The files of a run: its images, the plans and the configuration.

    Attributes:
        path: The folder.
        programs: Folder of the compiled programs, which all runs share.
    """

    path: pathlib.Path
    programs: pathlib.Path

    @property
    def images(self) -> pathlib.Path:
        """Folder of the images."""
        return self.path / "images"

    @property
    def workdir(self) -> pathlib.Path:
        """Folder to which the run writes."""
        return self.path / "run"

    @property
    def gin(self) -> pathlib.Path:
        """File of the configuration."""
        return self.path / "run.gin"

    def plan(self, processes: int) -> pathlib.Path:
        """File of the plan for so many processes."""
        return self.path / f"plan-{processes}.json"

    @property
    def checkpoints(self) -> pathlib.Path:
        """Folder of the checkpoints."""
        return self.workdir / "checkpoints"

    def write(self, processes: int, producers: Sequence[str] = ()) -> None:
        """Writes all files for a run of so many processes, whose batches these producers make if there are any."""
        self.path.mkdir(parents=True)
        self.images.mkdir()
        for number in range(IMAGES + HELD_OUT):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(image_path(str(self.images), number))
        for count in PROCESSES:
            self.plan(count).write_text(json.dumps(plan_document(count)), encoding="utf-8")
        self.write_gin(processes, producers)

    def write_gin(self, processes: int, producers: Sequence[str]) -> None:
        """Writes the configuration alone."""
        self.gin.write_text(
            _GIN.format(
                images=self.images,
                count=IMAGES,
                held_out=HELD_OUT,
                rows=ROWS,
                plan=self.plan(processes),
                steps=STEPS,
                checkpoint_interval=CHECKPOINT_INTERVAL,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                producers=tuple(producers),
            ),
            encoding="utf-8",
        )

    def environment(self) -> dict[str, str]:
        """The environment variables of the processes of the run: on CPUs, a restart finds the compiled programs."""
        return os.environ | {
            "JAX_PLATFORMS": "cpu",
            "NPROC": "16",  # XLA's thread pool: with fewer threads than participants collectives hang
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_COMPILATION_CACHE_DIR": str(self.programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "PYTHONUNBUFFERED": "1",
            "MMJAX_START_TIMEOUT": "90",
        }
