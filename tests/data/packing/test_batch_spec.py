"""The element spec equals that of batches of every shipped configuration."""

import dataclasses
import json

import gin
import numpy as np
import pytest
from PIL import Image

from configs.architectures import ExpertsConfig, ModelConfig
from data.data_config import DataConfig
from data.datasets.conversations import Conversations
from data.datasets.spoken_easy_vqa import SpokenEasyVQA
from data.datasets.tone_vqa import ToneVQA
from data.packing.batch_spec import ArraySpec, GlobalBatchSpec, global_batch_spec
from data.packing.pipeline import training_batches
from data.sources.llava import LlavaJson
from mmjax import cli
from mmjax.training.config import TrainConfig
from tests.small_vqa import SmallVQA
from tests.tones import write_tones


def configured(gin_file: str) -> TrainConfig:
    """A shipped configuration; its data set is made by the test."""
    cli.parse_gin((gin_file,))
    try:
        return cli.configured(TrainConfig)
    finally:
        gin.clear_config()


def assert_spec_of_batches(config: TrainConfig, dataset) -> None:
    """The spec, told before any batch, is that of the first ones, field by field."""
    spec = global_batch_spec(config.data, config.model)
    batches = training_batches(dataclasses.replace(config.data, window=64), config.model, dataset)
    try:
        for _ in range(2):
            assert GlobalBatchSpec.from_batch(next(batches)) == spec
    finally:
        batches.close()


@pytest.mark.parametrize(
    "gin_file",
    ["quickstart.gin", "easy_vqa.gin", "tiny.gin", "tiny_dit.gin", "tiny_experts.gin", "tiny_features.gin"],
)
def test_spec_of_easy_vqa_configurations(gin_file):
    assert_spec_of_batches(configured(gin_file), SmallVQA("train"))


def test_spec_of_questions_in_tones():
    assert_spec_of_batches(configured("tiny_encoders.gin"), ToneVQA("train"))


def test_spec_of_spoken_questions(tmp_path):
    write_tones(tmp_path)
    assert_spec_of_batches(configured("spoken_vqa.gin"), SpokenEasyVQA("train", str(tmp_path), 3))


def test_spec_of_llava_conversations(tmp_path):
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    talk = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A wall."}]
    (tmp_path / "data.json").write_text(json.dumps([{"image": "a.png", "conversations": talk}] * 8))
    records = LlavaJson(str(tmp_path / "data.json"), str(tmp_path))
    assert_spec_of_batches(configured("llava.gin"), Conversations(split="train", train=(("llava", records),)))


@pytest.mark.parametrize("experts", [None, ExpertsConfig()])
def test_spec_without_encoders_or_generators(experts):
    plain = ModelConfig(encoders=(), generators=())
    model = dataclasses.replace(plain, backbone=dataclasses.replace(plain.backbone, experts=experts))
    spec = global_batch_spec(DataConfig(rows=3, tokens=20), model)
    assert list(spec.arrays) == ["backbone"] and spec.rows == 3
    assert spec.arrays["backbone"]["tokens"] == ArraySpec((3, 20), np.dtype(np.int32))
    assert ("balancing_weights" in spec.arrays["backbone"]) is (experts is not None)


def test_other_numbers_of_rows():
    spec = global_batch_spec(DataConfig(rows=8), ModelConfig())
    assert spec.with_rows(2) == global_batch_spec(DataConfig(rows=2), ModelConfig())
    assert spec.with_rows(8) == spec
