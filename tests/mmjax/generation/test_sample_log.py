"""The log of samples with a real trainer: what is written, that programs are compiled once, and what turns it off."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest
from PIL import Image

from configs.architectures import BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from data.data_config import DataConfig
from mmjax.generation import sample_log
from mmjax.generation.sample_log import SampleLog
from mmjax.generation.trained_model import model_of_trainer
from mmjax.training.config import TrainConfig
from mmjax.training.trainer import Trainer
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.small_vqa import SmallVQA

pytestmark = pytest.mark.runs

MODEL = ModelConfig(
    (VisionConfig(width=16, depth=1, heads=2, ffn=32, patch=16),),
    BackboneConfig(vocabulary=48, width=16, depth=1, heads=2, kv_heads=2, ffn=32),
    (UNetConfig(image_size=8, patch=2, widths=(8,), groups=2, head_width=4, conditions=2, condition_width=8),),
)
CONFIG = TrainConfig(
    dataset=SmallVQA,
    model=MODEL,
    data=DataConfig(rows=4, tokens=256, patches=32, images=2, mixture=(("vqa", 1.0), ("description", 0.5))),
    steps=6,
)


@pytest.fixture(scope="module")
def trainer():
    with Trainer(CONFIG, single_device_plan(module_graph(MODEL))) as trainer:
        yield trainer


def records(workdir, step: int) -> list[dict]:
    return [json.loads(line) for line in (workdir / "samples" / f"step_{step:06d}.jsonl").read_text().splitlines()]


def test_the_same_prompts_are_answered_by_the_parameters_of_each_step(trainer, tmp_path, caplog):
    log = SampleLog(tmp_path, questions=2, images=1)
    log(trainer)
    first = records(tmp_path, 0)
    assert [record["kind"] for record in first] == ["answer", "answer", "image"]
    model = model_of_trainer(trainer)
    samples = [prompt.sample for prompt in log._prompts.questions]
    assert [record["answer"] for record in first[:2]] == [
        answer.text for answer in model.continue_samples(samples, max_tokens=sample_log.MAX_ANSWER_TOKENS)
    ]
    image = np.asarray(Image.open(tmp_path / "samples" / "step_000000_0.png"))
    assert image.shape == (8, 8, 3)
    for record in first[:2]:
        assert [(tmp_path / "samples" / name).is_file() for name in record["images"]] == [True]

    # Parameters of another step: the same prompts, other images, and no program is compiled again.
    trainer._state = dataclasses.replace(
        trainer.state, master_weights=jax.tree.map(lambda leaf: leaf + 0.05, trainer.state.master_weights)
    )
    trainer.steps_done = 5
    full = tmp_path / "samples" / "step_000005.jsonl.tmp"
    full.symlink_to("/dev/full")
    log(trainer)  # a full disk does not end the run
    assert "after step 5: [Errno 28] No space left on device" in caplog.text
    assert not full.is_symlink(), "what could not be written is removed"
    log(trainer)
    second = records(tmp_path, 5)
    assert [record["prompt"] for record in second] == [record["prompt"] for record in first]
    assert not np.array_equal(np.asarray(Image.open(tmp_path / "samples" / second[2]["image"])), image)
    assert log._model._decode_program._cache_size() == 1
    assert log._generator._sample_program._cache_size() == log._generator._conditions_program._cache_size() == 1
    trainer.steps_done = 0

    SampleLog(tmp_path, 2, 1, resumed_step=4)
    left = sorted(path.name for path in (tmp_path / "samples").glob("step_*"))
    assert left == ["step_000000.jsonl", "step_000000_0.png"], "a resumed run takes later samples again"


def test_no_samples_are_taken_if_none_are_wanted_or_the_model_is_large(trainer, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    SampleLog(tmp_path, 0, 0)(trainer)
    assert not (tmp_path / "samples").exists()
    monkeypatch.setattr(sample_log, "MAX_PARAMETERS", 100)
    SampleLog(tmp_path, 2, 1)(trainer)
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["not_taken.txt"]
    assert "parameters; samples are taken of models with 100 at most" in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO"], "nothing is wrong"


def test_data_without_questions_and_models_without_a_generator_take_no_samples(trainer, tmp_path, monkeypatch):
    class Unscored(SmallVQA):
        def __init__(self, split):
            super().__init__(split)
            self.evaluated_kinds = ()

    monkeypatch.setattr(trainer, "config", dataclasses.replace(CONFIG, dataset=Unscored))
    SampleLog(tmp_path, questions=2, images=0)(trainer)
    reason = (tmp_path / "samples" / "not_taken.txt").read_text()
    assert reason == "the configuration has neither held-out questions to answer nor held-out images to generate\n"
