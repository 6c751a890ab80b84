"""A small run without a generator, whose vision encoder is frozen, and its reference."""

import dataclasses

import jax

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.verification.reference import Reference, run_reference
from tests.small_vqa import SmallVQA
from tests.tiny_model import VISION, tiny_model

DATA = DataConfig(rows=6, tokens=160, patches=32, samples=8)
MODEL = dataclasses.replace(tiny_model(vocabulary=48), encoders=(dataclasses.replace(VISION, patch=8),), generators=())
SETTINGS = EngineSettings(seed=5, trainable=("projectors", "backbone"))


def run_small_reference(model: ModelConfig = MODEL) -> Reference:
    """One step of the run on one device."""
    batches = training_batches(DATA, model, SmallVQA("train"))
    with jax.default_matmul_precision("highest"):
        reference = run_reference(model, DATA, batches, 1, SETTINGS)
    batches.close()
    return reference
